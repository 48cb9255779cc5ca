"""Which tasks are worth computing when not all can be in time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from batching.cost_table import CostTable
from batching.deadline_window import DeadlineWindow, WindowOptions
from tests.batching.fakes import FakeTask
from tfs.core.errors import InvalidArgument

TABLE = {1: 1.0, 2: 1.5, 4: 2.0, 8: 3.0}


def window_at(rows_per_s: float, margin: float = 1.0) -> DeadlineWindow:
    window = DeadlineWindow(WindowOptions(margin), CostTable(TABLE), max_batch_rows=8)
    for index in range(3):
        window.note_arrival(1, index / rows_per_s)
    return window


def tasks_due(*deadlines_s: float | None, rows: int = 1) -> list[FakeTask]:
    return [FakeTask(rows, deadline_s=when_s) for when_s in deadlines_s]


def chosen(
    window: DeadlineWindow, tasks: Sequence[FakeTask], now_s: float
) -> tuple[int, int]:
    """Returns how many tasks are given up, and where the batch stops."""
    taken, late = window.choose(tasks, now_s)
    return len(late), len(late) + len(taken)


def test_the_rate_is_that_of_the_last_arrivals() -> None:
    """Rows after the first over the time they took to come."""
    assert window_at(2.0).rows_per_s() == pytest.approx(2.0)
    assert DeadlineWindow(WindowOptions(), CostTable(), 8).rows_per_s() == 0.0


def test_who_can_be_in_time_is_taken_from_the_front() -> None:
    """Under little load a batch is as large as the first deadline allows."""
    assert chosen(window_at(0.5), tasks_due(1.5, 9, 9, 9), 0.0) == (0, 2)
    assert chosen(window_at(0.5), tasks_due(9, 9, 9, 9), 0.0) == (0, 4)


def test_the_hopeless_are_given_up() -> None:
    """Nobody computes what will be late."""
    assert chosen(window_at(0.5), tasks_due(0.5, 0.9, 9, 9), 0.0) == (2, 4)
    assert chosen(window_at(0.5), tasks_due(0.5, 0.9), 0.0) == (2, 2)


def test_a_late_head_does_not_make_batches_too_small() -> None:
    """Under load, saving the head alone would lose those behind it."""
    deadlines = (1.0, 1.2, 3.5, 3.5, 3.5, 3.5, 3.5, 3.5, 3.5, 3.5)
    assert chosen(window_at(2.4), tasks_due(*deadlines), 0.0) == (2, 10)
    assert chosen(window_at(0.5), tasks_due(*deadlines), 0.0) == (0, 1)


def test_tasks_without_a_deadline_always_fit() -> None:
    """They come last and are never given up."""
    assert chosen(window_at(2.4), tasks_due(0.1, None, None), 0.0) == (1, 3)


def test_a_larger_batch_may_be_faster() -> None:
    """All sizes are looked at, not only up to the first that is too slow."""
    table = CostTable({1: 1.0, 2: 5.0, 3: 2.0})
    window = DeadlineWindow(WindowOptions(), table, max_batch_rows=4)
    assert chosen(window, tasks_due(2.5, 9, 9), 0.0) == (0, 3)
    assert chosen(window, tasks_due(2.5, 9), 0.0) == (0, 1)


def test_rows_count_and_not_tasks() -> None:
    """A task of several rows is in time only whole."""
    assert chosen(window_at(0.5), tasks_due(2.4, 9, rows=3), 0.0) == (0, 1)
    assert chosen(window_at(0.5), tasks_due(9, 9, 9, rows=3), 0.0) == (0, 2)


def test_the_margin_makes_tasks_late_earlier() -> None:
    """A device with varying times needs some room."""
    assert chosen(window_at(0.5), tasks_due(2.0, 2.0, 2.0, 2.0), 0.0) == (0, 4)
    assert chosen(window_at(0.5, 1.2), tasks_due(2.0, 2.0, 2.0, 2.0), 0.0) == (0, 2)


def test_without_measurements_the_order_is_all_there_is() -> None:
    """Earliest deadline first, as many as fit."""
    window = DeadlineWindow(WindowOptions(), CostTable(), max_batch_rows=2)
    assert chosen(window, tasks_due(1, 2, 3), 0.0) == (0, 2)
    assert chosen(window, [], 0.0) == (0, 0)


def test_a_margin_must_be_positive() -> None:
    """Options are checked when made."""
    with pytest.raises(InvalidArgument):
        WindowOptions(0.0)


def test_times_that_nobody_can_meet_are_tried_again() -> None:
    """A stall or a first run may have made the table wrong, and only a batch that is
    computed can put it right. The first of them comes after as long as it takes, or a
    second; each in vain doubles that, up to sixteen times.
    """
    window = window_at(0.5)
    assert chosen(window, tasks_due(9), 0.0) == (0, 1)
    assert chosen(window, tasks_due(1.9, 1.9), 1.0) == (2, 2)
    assert chosen(window, tasks_due(2.9, 2.9), 2.0) == (1, 2)
    assert chosen(window, tasks_due(4.0), 3.9) == (1, 1)
    assert chosen(window, tasks_due(5.0), 4.9) == (1, 1)
    assert chosen(window, tasks_due(5.1), 5.0) == (0, 1)
    now_s, begun_s = 5.0, []
    for _ in range(600):
        now_s += 0.1
        if chosen(window, tasks_due(now_s + 0.5), now_s) == (0, 1):
            begun_s.append(now_s)
    assert begun_s == pytest.approx([10.0, 19.0, 36.0, 53.0], abs=0.2)
    assert chosen(window, tasks_due(now_s + 2), now_s) == (0, 1)
    assert chosen(window, tasks_due(now_s + 2.5), now_s + 2.0) == (0, 1)
    slow = DeadlineWindow(WindowOptions(), CostTable({1: 30.0}), max_batch_rows=8)
    assert chosen(slow, tasks_due(1.0), 0.0) == (1, 1)
    assert chosen(slow, tasks_due(31.9), 30.9) == (1, 1)
    assert chosen(slow, tasks_due(32.0), 31.0) == (0, 1)
