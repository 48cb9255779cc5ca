"""What can be read of a signature's batching, also when its version changes its form."""

from __future__ import annotations

from tests.servables.joining.batched_sums import (
    BatchedSums,
    options_of,
    outputs_of,
)
from tests.tensors import floats
from tfs.core import stat_names
from tfs.core.errors import (
    Cancelled,
)
from tfs.core.signature import DEFAULT_SIGNATURE
from tfs.core.stats import Stats
from tfs.core.version.model_profile import ModelProfile, SignatureProfile
from tfs.servables.joining.batched import BatchedServable


def test_what_batching_comes_to_can_be_read() -> None:
    """Sizes, padding, waits and ends, per queue and for exporters.

    batching_session_test: the metrics of AllowedBatchSizesRequirePadding.
    """
    at = BatchedSums()
    stats = Stats()
    measured = SignatureProfile(rows_independent=True)
    profile = ModelProfile(signatures={DEFAULT_SIGNATURE: measured})
    at.batched = BatchedServable(
        at.inner, at.scheduler, at.loop, options_of(allowed_rows=(4,)), profile, stats
    )
    assert at.batched.report(DEFAULT_SIGNATURE) == []
    assert at.batched.report("no such signature") == ()
    assert list(stats.histograms()) == []
    assert {value for _, _, value in stats.counters()} == {0}
    gone, _ = at.submit({"x": floats((1, 2), 1, 2)})
    gone.cancel.cancel(Cancelled("gone"))
    at.submit({"x": floats((2, 2), 1, 2, 3, 4)})
    at.submit({"x": floats((5, 2), *range(10))})
    at.step()
    (report,) = at.batched.report(DEFAULT_SIGNATURE)
    assert report.input_names == ("x",)
    counts = report.counts
    assert (counts.num_batches, counts.num_rows, counts.num_padding_rows) == (1, 2, 2)
    assert (counts.num_tasks, counts.num_failed_tasks) == (1, 0)
    assert (counts.num_refused, counts.num_cancelled) == (1, 1)
    assert counts.batch_fill().total == 0.5
    labels = (("model", "sums"), ("signature", DEFAULT_SIGNATURE), ("version", "3"))
    values = {(name, found): value for name, found, value in stats.counters()}
    assert values["batches", labels] == 1
    assert values["batch_tasks", (("end", "refused"), *labels)] == 1
    histograms = {name: found for name, _, found in stats.histograms()}
    assert histograms["batch_rows"].mean == 2
    assert "batch_depth_tasks" in histograms
    at.batched.close()
    assert list(stats.counters()) == []
    assert list(stats.histograms()) == []
    at.close()


def test_published_numbers_keep_no_version_alive() -> None:
    """A load that fails after its queues were made never closes them."""
    at = BatchedSums()
    stats = Stats()
    BatchedServable(at.inner, at.scheduler, at.loop, options_of(), None, stats)
    assert list(stats.counters()) == []
    at.close()


def test_numbers_go_on_when_a_version_gets_another_form() -> None:
    """Re-placed, a version has new queues, which count on; totals never fall."""
    at = BatchedSums()
    stats = Stats()

    def made(max_batch_rows: int) -> BatchedServable:
        options = options_of(max_batch_rows=max_batch_rows)
        return BatchedServable(at.inner, at.scheduler, at.loop, options, None, stats)

    def numbers() -> tuple[int, int]:
        (report,) = at.batched.report(DEFAULT_SIGNATURE)
        assert sum(report.counts.batch_rows().counts) == report.counts.num_batches
        (total,) = (
            value for name, _, value in stats.counters() if name == stat_names.BATCHES
        )
        assert total == report.counts.num_batches
        return report.counts.num_tasks, report.counts.num_rows

    at.batched = made(8)
    at.submit({"x": floats((7, 2), *range(14))})
    at.step()
    assert numbers() == (1, 7)
    for max_batch_rows in (4, 2):
        before, at.batched = at.batched, made(max_batch_rows)
        at.batched.continue_counts(before)
        before.close()
        at.step()
        assert numbers() == (1, 7)
    at.submit({"x": floats((2, 2), *range(4))})
    at.step()
    assert numbers() == (2, 9)
    (histogram,) = (
        snapshot
        for name, _, snapshot in stats.histograms()
        if name == stat_names.BATCH_ROWS
    )
    assert sum(histogram.counts) == 2
    assert histogram.total == 9


def test_what_goes_past_the_queues_is_counted_on_by_the_next_form() -> None:
    """A large request counts when it comes, its calls when they are made.

    Also those that it is still to make when the version gets another form.
    """
    at = BatchedSums()
    stats = Stats()
    measured = SignatureProfile(
        rows_independent=True, call_s_by_rows={1: 1e-5, 32: 1e-5}
    )
    profile = ModelProfile(signatures={DEFAULT_SIGNATURE: measured})

    def made() -> BatchedServable:
        return BatchedServable(at.inner, at.scheduler, at.loop, None, profile, stats)

    def counters() -> dict[str, float]:
        return {name: value for name, _, value in stats.counters() if "bypass" in name}

    at.batched = made()
    assert set(counters().values()) == {0}
    _, huge = at.submit({"x": floats((10_000, 2), *[1.0] * 20_000)})
    before, at.batched = at.batched, made()
    at.batched.continue_counts(before)
    before.close()
    for _ in range(100):
        at.step()
    outputs_of(huge)
    assert counters() == {
        stat_names.BYPASS_TASKS: 1,
        stat_names.BYPASS_ROWS: 10_000,
        stat_names.BYPASS_CALLS: len(at.inner.seen),
    }
    at.submit({"x": floats((1, 2), 3, 4)})
    at.step()
    assert counters()[stat_names.BYPASS_TASKS] == 1
    assert at.batched.counts("no such signature").num_past == 0
    at.close()
