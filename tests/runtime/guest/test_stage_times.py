"""What is known of the time that stages take."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tests.runtime.guest.row_call import RowCall, share
from tests.runtime.guest.stage_tables import times_of
from tfs.runtime.guest.layered.rules import GREEDY
from tfs.runtime.guest.layered.stage_times import StageTimes
from tfs.runtime.guest.layered.stages import Stages
from tfs.testing.fake_clock import FakeClock


def test_times_are_known_from_two_sizes_of_each_stage_on() -> None:
    """One size does not tell what a second row costs."""
    times = StageTimes(2, 8)
    for stage, rows in ((0, 1), (0, 2), (1, 1)):
        times.put(stage, rows, 1.0)
        assert not times.are_known
    times.put(1, 4, 1.0)
    assert times.are_known
    assert not StageTimes(1, 8).are_known


def test_sizes_between_and_beyond_follow_their_neighbours() -> None:
    """Estimates follow their neighbours, and do not fall beyond what was measured."""
    times = StageTimes(1, 32)
    times.put(0, 2, 4.0)
    times.put(0, 4, 8.0)
    assert times.total_s(3) == pytest.approx(6.0)
    assert times.total_s(8) == pytest.approx(16.0)
    assert times.total_s(1) == pytest.approx(2.0)
    assert times.total_s(0) == 0.0
    assert times.total_s(6) == pytest.approx(12.0)
    times.put(0, 8, 7.0)
    times.begin()  # a kernel for eight is quicker than that for four
    assert times.total_s(6) == pytest.approx(7.0)  # it is padded
    assert times.total_s(16) == pytest.approx(7.0)


def test_a_run_is_parted_at_any_stage() -> None:
    """What is behind and what is to come add up to all."""
    times = StageTimes(3, 8)
    for rows in (1, 2):
        for stage in range(3):
            times.put(stage, rows, (stage + 1) * rows)
    assert [times.until_s(stage, 2) for stage in (0, 1, 2)] == [0, 2, 6]
    assert [times.from_s(stage, 2) for stage in (0, 1, 2)] == [12, 10, 6]
    assert times.total_s(2) == 12
    assert times.best_rate == pytest.approx(1 / 6)


def test_what_changes_is_followed_slowly() -> None:
    """One slow call does not turn the table over, and none does within a run."""
    times = StageTimes(1, 8)
    times.put(0, 1, 1.0)
    times.put(0, 2, 2.0)
    assert times.total_s(1) == 1.0
    times.note(0, 1, 2.0)
    assert times.total_s(1) == 1.0
    times.begin()
    assert times.total_s(1) == pytest.approx(1.1845)
    times.note(0, 1, 1000.0)  # interrupted: it counts as three times as long
    times.begin()
    assert times.total_s(1) < 1.8


def test_a_stage_that_becomes_twice_as_slow_is_learned_within_fifty_batches() -> None:
    """Also for sizes that do not come meanwhile."""
    times = times_of([{rows: 1.0 + rows for rows in (1, 2, 4, 8)}], 8)
    for batch in range(50):
        rows = (1, 2, 3)[batch % 3]
        times.note(0, rows, 2 * (1.0 + rows))
    times.begin()
    for rows in range(1, 9):
        assert times.total_s(rows) == pytest.approx(2 * (1.0 + rows), rel=0.1)


def test_a_stage_is_padded_to_more_rows_where_they_take_less() -> None:
    """As a product over 12 rows that takes longer than over 16; nothing else is."""
    table = [{8: 8.0, 12: 12.0, 16: 16.0}, {8: 32.0, 12: 44.0, 16: 31.0}]
    times = times_of(table, 16)
    assert [times.padded(0, rows) for rows in (8, 12, 16)] == [8, 12, 16]
    assert [times.padded(1, rows) for rows in (8, 12, 16)] == [16, 16, 16]
    assert times.total_s(12) == 12.0 + 31.0
    assert [times_of(table, 12).padded(1, rows) for rows in (8, 12)] == [
        8,
        12,
    ]


def test_what_is_predicted_is_compared_with_what_is_measured() -> None:
    """Who has a bound to keep reckons with what one run in twenty exceeds."""
    times = times_of([{1: 1.0, 2: 1.0}], 8)
    for _ in range(40):
        times.note(0, 1, 1.0)
    times.begin()
    assert times.margin == 1.05
    for _ in range(5):
        times.note(0, 1, 1.5 * times.stage_s(0, 1))
        times.begin()
    assert times.margin == pytest.approx(1.5)


def test_joining_costs_by_the_row() -> None:
    """Joining costs what was measured at each stage, and nothing if none was."""
    times = StageTimes(3, 8)
    assert times.join_s(1, 4) == 0.0
    times.note_join(1, 4, 8.0)
    assert times.join_s(1, 2) == pytest.approx(4.0)
    times.note_join(1, 4, 12.0)
    assert times.join_s(1, 1) == pytest.approx(2.15)
    assert times.join_s(2, 1) == 0.0


def test_no_batch_begins_with_more_rows_than_pay() -> None:
    """Sixteen take more than twice as long as eight; within 3 % the fewest are taken."""
    times = times_of([{1: 2.0, 4: 4.0, 8: 7.9, 16: 20.0}], 16)
    assert times.best_rows == 4
    assert GREEDY.most_rows(times) == 4
    assert times_of([{1: 2.0, 8: 7.0, 16: 14.0}], 16).best_rows == 8
    # What was not measured may be better still.
    assert times_of([{1: 2.0, 2: 3.0}], 16).best_rows == 16


def test_stages_are_padded_only_for_more_than_their_errors() -> None:
    """Where times scatter by a fifth, a tenth less says nothing."""
    times = times_of([{1: 1.0, 8: 10.0, 16: 9.0}], 16)
    assert times.padded(0, 8) == 16
    times.errors.extend((0.2, -0.2))
    times.begin()
    assert times.padded(0, 8) == 8


def test_what_is_done_between_stages_is_time_of_the_run() -> None:
    """Else a run would take longer than what is simulated of it."""
    clock = FakeClock()

    def stage(x: Tensor) -> Tensor:
        clock.advance(1)
        return x

    def take(_: object) -> list[RowCall]:
        clock.advance(2)
        return []

    def answer(value: Tensor, batch: Sequence[RowCall]) -> None:
        clock.advance(4)
        share(value, batch)

    stages = Stages([stage, stage], 8, clock, answer)
    stages.serve([RowCall(torch.ones(1, 1))], take=take)
    assert [stages.times.stage_s(stage, 1) for stage in (0, 1)] == [1.0, 7.0]
