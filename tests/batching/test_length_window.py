"""Which tasks of different lengths are computed together, and which of them first."""

from __future__ import annotations

import itertools

import hypothesis
import pytest
from hypothesis import strategies as st

from batching.length_window import BatchCosts, LengthWindow, Sizes, planned_batches
from tests.batching.fakes import FakeTask


class LongTask(FakeTask):
    """A task of one row and a length."""

    def __init__(
        self, length: int, *, arrived_s: float = 0.0, deadline_s: float | None = None
    ) -> None:
        super().__init__(deadline_s=deadline_s)
        self.length = length
        self.arrived_s = arrived_s


def sizes_of(task: LongTask) -> Sizes:
    return (task.length,)


def window(
    max_rows: int = 8, fixed_s: float = 0.01, token_s: float = 0.001
) -> LengthWindow:
    """A window that has seen batches of many sizes."""
    made = LengthWindow(sizes_of, max_rows)
    for _ in range(5):
        for rows, length in itertools.product((1, 2, 4, 8), (8, 32, 64, 128, 512)):
            tasks = [LongTask(length) for _ in range(rows)]
            made.observe(tasks, fixed_s + token_s * rows * length)
    return made


def lengths(tasks: object) -> list[int]:
    assert isinstance(tasks, list)
    return sorted(task.length for task in tasks)


@hypothesis.given(
    rows=st.lists(st.integers(1, 3), min_size=1, max_size=7),
    data=st.data(),
    max_rows=st.integers(3, 8),
    fixed_s=st.floats(0, 100),
)
def test_a_plan_takes_no_longer_than_any_other_cut(
    rows: list[int], data: st.DataObject, max_rows: int, fixed_s: float
) -> None:
    """Every way to cut the queue is tried against it, and no batch is too large."""
    sizes = sorted((data.draw(st.integers(1, 100)),) for _ in rows)

    def predict_s(num_rows: int, elements: int) -> float:
        return fixed_s + num_rows * elements

    def cost_of(batches: list[tuple[int, int]]) -> float:
        return sum(
            predict_s(sum(rows[a:b]), max(size for (size,) in sizes[a:b]))
            for a, b in batches
        )

    planned = planned_batches(rows, sizes, predict_s, max_rows)
    assert [stop for _, stop in planned[:-1]] == [start for start, _ in planned[1:]]
    assert (planned[0][0], planned[-1][1]) == (0, len(rows))
    assert all(sum(rows[a:b]) <= max_rows for a, b in planned)
    for picks in itertools.product((False, True), repeat=len(rows) - 1):
        cuts = [0, *(i + 1 for i, pick in enumerate(picks) if pick), len(rows)]
        other = list(itertools.pairwise(cuts))
        if all(sum(rows[a:b]) <= max_rows for a, b in other):
            assert cost_of(planned) <= cost_of(other) * (1 + 1e-9)


def test_short_tasks_do_not_wait_for_the_padding_of_long_ones() -> None:
    """They go together, and first: many are answered in little time."""
    tasks = [LongTask(length) for length in (500, 8, 10, 480, 9, 12)]
    assert lengths(window().choose(tasks, 0.0)[0]) == [8, 9, 10, 12]


def test_equal_lengths_go_in_the_order_they_came() -> None:
    """As without lengths; no more than fit a batch."""
    tasks = [LongTask(16, arrived_s=float(index)) for index in range(10)]
    assert window().choose(tasks, 10.0)[0] == tasks[:8]


def test_a_deadline_that_waiting_would_miss_goes_first() -> None:
    """A long task in time goes before short ones that can wait, but not in vain."""
    learned = window()
    long_s = learned.costs.predict_s(1, 500)
    short_s = learned.costs.predict_s(3, 12)
    short = [LongTask(length) for length in (8, 10, 12)]
    urgent = LongTask(500, deadline_s=long_s + short_s / 2)
    assert learned.choose([*short, urgent], 0.0)[0] == [urgent]
    late = LongTask(500, deadline_s=long_s / 2)
    assert lengths(learned.choose([*short, late], 0.0)[0]) == [8, 10, 12]


def test_a_task_that_waited_for_longer_than_all_take_goes_first() -> None:
    """However many short ones keep coming."""
    learned = window()
    short = [LongTask(10, arrived_s=99.9) for _ in range(8)]
    old = LongTask(500, arrived_s=0.0)
    assert lengths(learned.choose([old, *short], 100.0)[0]) == [500]


def test_costs_follow_what_batches_took() -> None:
    """Within a tenth between the places that were seen; attention is no line."""
    costs = BatchCosts()

    def took_s(rows: int, length: int) -> float:
        return 0.005 + rows * (1e-4 * length + 2e-7 * length * length)

    for _ in range(20):
        for rows, length in itertools.product(
            (1, 2, 4, 8, 16), (8, 32, 64, 128, 256, 512)
        ):
            costs.observe(rows, length, took_s(rows, length))
    for rows, length in ((1, 60), (3, 100), (6, 30), (12, 500)):
        assert costs.predict_s(rows, length) == pytest.approx(
            took_s(rows, length), rel=0.35
        )
    costs.observe(2, 64, 1e3)  # interrupted: it counts as three times as long
    assert costs.predict_s(2, 64) < 2 * took_s(2, 64)


def test_before_anything_is_known_few_elements_are_padded() -> None:
    """What a batch costs beyond its elements is a guess then."""
    fresh = LengthWindow(sizes_of, 8)
    tasks = [LongTask(length) for length in (1000, 10, 12)]
    assert lengths(fresh.choose(tasks, 0.0)[0]) == [10, 12]
    assert fresh.choose(tasks[:1], 0.0)[0] == tasks[:1]
