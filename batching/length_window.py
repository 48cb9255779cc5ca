"""Which waiting tasks of different lengths are computed together.

A batch is padded to its longest task, so a long task makes short ones dear, and to
compute every length by itself makes many small batches. The tasks that wait are therefore
ordered by length and cut into batches so that all of them together take least time, by
what batches of so many rows and such a length took before. First goes the batch that
answers most tasks in a given time, unless another one would miss a deadline by waiting,
or holds a task that has waited for longer than all the batches take.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from batching.batch_costs import BatchCosts
from tfs.core.batch.batch_task import Task, TaskT

Sizes: TypeAlias = tuple[int, ...]
"""The padded sizes of a task: one for a sequence, two for an image, and so on."""

_MOST_TASKS: Final = 128
"""As many of the oldest are looked at: the plan takes a millisecond for them."""


class LengthWindow:
    """Chooses batches by length, and learns what they take. Confined to one thread.

    Args:
        sizes_of: Returns the sizes of a task.
        max_batch_rows: Most rows of one batch.

    """

    __slots__ = ("_max_batch_rows", "_sizes_of", "costs")

    def __init__(self, sizes_of: Callable[[Any], Sizes], max_batch_rows: int) -> None:
        self._sizes_of = sizes_of
        self._max_batch_rows = max_batch_rows
        self.costs = BatchCosts()

    def choose(self, tasks: Sequence[TaskT], now_s: float) -> list[TaskT]:
        """Returns the tasks of the next batch, of those that wait, in order of arrival."""
        if len(tasks) < 2:
            return list(tasks)
        candidates = sorted(
            tasks[:_MOST_TASKS], key=lambda task: math.prod(self._sizes_of(task))
        )
        sizes = [self._sizes_of(task) for task in candidates]
        rows = [task.num_rows for task in candidates]
        if sizes[0] == sizes[-1]:
            return _that_fit(tasks, self._max_batch_rows)
        batches = planned_batches(
            rows, sizes, self.costs.predict_s, self._max_batch_rows
        )
        start, stop = self._first(batches, candidates, sizes, now_s)
        return candidates[start:stop]

    def observe(self, tasks: Sequence[Task], duration_s: float) -> None:
        """Learns how long a batch took."""
        num_rows = sum([task.num_rows for task in tasks])
        self.costs.observe(
            num_rows, extent([self._sizes_of(t) for t in tasks]), duration_s
        )

    def _first(
        self,
        batches: Sequence[tuple[int, int]],
        tasks: Sequence[Task],
        sizes: Sequence[Sizes],
        now_s: float,
    ) -> tuple[int, int]:
        """Returns the batch that goes first."""
        took_s = [
            self.costs.predict_s(
                sum(task.num_rows for task in tasks[start:stop]),
                extent(sizes[start:stop]),
            )
            for start, stop in batches
        ]
        total_s = sum(took_s)
        shortest_s = min(took_s)
        best, best_key = batches[0], (0, -math.inf)
        for (start, stop), batch_s in zip(batches, took_s, strict=True):
            members = tasks[start:stop]
            in_time = [t for t in members if _slack_s(t, now_s) >= batch_s]
            # Deadlines that hold if it runs now, and do not if another goes first.
            is_urgent = any(
                _slack_s(task, now_s) < batch_s + shortest_s for task in in_time
            )
            waited_s = now_s - min(task.arrived_s for task in members)
            rank = 2 if waited_s > total_s and in_time else int(is_urgent)
            key = (rank, len(in_time) / max(batch_s, 1e-9))
            if key > best_key:
                best, best_key = (start, stop), key
        return best


def planned_batches(
    rows: Sequence[int],
    sizes: Sequence[Sizes],
    predict_s: Callable[[int, int], float],
    max_rows: int,
) -> list[tuple[int, int]]:
    """Returns where to cut tasks into batches that together take least time. Pure.

    Args:
        rows: Rows of each task, ordered by length.
        sizes: Their sizes.
        predict_s: Returns the time of a batch by its rows, and the elements of a row once
            it is padded.
        max_rows: Most rows of a batch of several tasks.

    Returns:
        Start and stop of each batch, in order.

    """
    num = len(rows)
    least_s = [0.0] + [math.inf] * num
    cut_at = [0] * (num + 1)
    for stop in range(1, num + 1):
        batch_rows = 0
        largest = sizes[stop - 1]
        for start in range(stop - 1, -1, -1):
            batch_rows += rows[start]
            if batch_rows > max_rows and start < stop - 1:
                break
            if sizes[start] != largest:
                largest = tuple(map(max, largest, sizes[start]))
            cost_s = least_s[start] + predict_s(batch_rows, math.prod(largest))
            if cost_s < least_s[stop]:
                least_s[stop], cut_at[stop] = cost_s, start
    batches: list[tuple[int, int]] = []
    stop = num
    while stop:
        batches.append((cut_at[stop], stop))
        stop = cut_at[stop]
    return batches[::-1]


def extent(sizes: Sequence[Sizes]) -> int:
    """Returns how many elements a row has once it is padded to the largest of ``sizes``."""
    return math.prod(map(max, zip(*sizes, strict=True)))


def _slack_s(task: Task, now_s: float) -> float:
    return math.inf if task.deadline_s is None else task.deadline_s - now_s


def _that_fit(tasks: Sequence[TaskT], max_rows: int) -> list[TaskT]:
    taken: list[TaskT] = []
    rows = 0
    for task in tasks:
        rows += task.num_rows
        if taken and rows > max_rows:
            break
        taken.append(task)
    return taken
