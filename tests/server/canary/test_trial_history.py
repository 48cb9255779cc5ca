"""tfs.server.canary.comparison: how a trial's figures moved."""

from __future__ import annotations

import itertools

from tfs.core.errors import Internal
from tfs.server.canary.comparison import MAX_SPANS, Tally, TrialHistory
from tfs.server.canary.difference import Difference


def test_each_time_has_the_figures_of_its_own_requests() -> None:
    """What came before does not weigh on it; what was not measured is None."""
    tally, history = Tally(), TrialHistory()
    history.note(100.0, tally)
    tally.add_copy({}, 0.1, {}, 0.2)
    tally.add_pair(2, Difference(num_rows=2, num_disagreeing=1))
    history.note(101.0, tally)  # too soon
    history.note(102.0, tally)
    tally.add_copy({}, 0.1, Internal("no"), 0.0)
    history.note(104.0, tally)
    first, second = history.spans()
    assert (first.begun_s, second.begun_s) == (100.0, 102.0)
    assert (first.top1_disagreement, second.top1_disagreement) == (0.5, None)
    assert (first.canary_error_rate, second.canary_error_rate) == (0.0, 1.0)
    assert first.latency_ratio == 2.0
    assert second.latency_ratio is None


def test_a_long_trial_is_told_in_as_few_times_as_a_short_one() -> None:
    """They are of equal length, and none is left out."""
    tally, history = Tally(), TrialHistory()
    for now_s in range(0, 5000, 2):
        tally.add_copy({}, 0.1, {}, 0.1)
        history.note(float(now_s), tally)
    spans = history.spans()
    assert MAX_SPANS / 2 <= len(spans) <= MAX_SPANS
    steps = {
        after.begun_s - before.begun_s for before, after in itertools.pairwise(spans)
    }
    assert len(steps) == 1
    assert spans[0].begun_s == 0.0
    assert all(span.canary_error_rate == 0.0 for span in spans)
