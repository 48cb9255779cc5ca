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

from tfs.core.batch.batch_task import Task, TaskT

_CELL_WEIGHT: Final = 0.2  # of a new batch, in its place of the table
_FORGETS: Final = 0.98  # of what was known of the line, per batch
_LARGEST_JUMP: Final = 3.0  # a batch that took so many times as long was interrupted
_UNKNOWN_ELEMENTS: Final = 64.0
"""Before anything is known a batch costs what so many further elements do."""


class BatchCosts:
    """Seconds of a batch by its rows and the elements of a padded row. Confined.

    It is a line over the elements of the whole batch, and a table of how far batches of
    about so many rows and elements are from it. A line alone would miss that long rows
    cost more than their share (attention), and a table alone would have to see every
    place before it is of use.
    """

    def __init__(self) -> None:
        self.num_seen = 0
        self._sums = [0.0] * 5  # of 1, x, y, xx, xy, older ones counting less
        self._cells: dict[tuple[int, int], float] = {}

    def observe(self, num_rows: int, elements: int, duration_s: float) -> None:
        """Records how long a batch took."""
        if duration_s <= 0.0:
            return
        if self.num_seen > 3:
            known_s = self.predict_s(num_rows, elements)
            duration_s = min(duration_s, _LARGEST_JUMP * known_s)
        self.num_seen += 1
        # Relative errors count, so each batch weighs by its time.
        x, weight = float(num_rows * elements), 1.0 / (duration_s * duration_s)
        new = (1.0, x, duration_s, x * x, x * duration_s)
        pairs = zip(self._sums, new, strict=True)
        self._sums = [_FORGETS * before + weight * each for before, each in pairs]
        ratio = duration_s / max(self._line(x), 1e-12)
        cell = _cell(num_rows, elements)
        before = self._cells.setdefault(cell, ratio)
        self._cells[cell] = before + _CELL_WEIGHT * (ratio - before)

    def predict_s(self, num_rows: int, elements: int) -> float:
        """Returns how long a batch would take."""
        line_s = self._line(float(num_rows * elements))
        rows, length = _cell(num_rows, elements)
        for near in ((rows, length), (rows - 1, length), (rows + 1, length)):
            ratio = self._cells.get(near)
            if ratio is not None:
                return line_s * ratio
        return line_s

    def _line(self, x: float) -> float:
        """Returns the time of a batch of ``x`` elements, by least squares."""
        n, sx, sy, sxx, sxy = self._sums
        if not n:
            return (_UNKNOWN_ELEMENTS + x) * 1e-6
        spread = n * sxx - sx * sx
        if spread <= 1e-9 * n * sxx:  # all batches were alike
            per_element_s = sy / (sx + n * _UNKNOWN_ELEMENTS)
            return per_element_s * (_UNKNOWN_ELEMENTS + x)
        slope = (n * sxy - sx * sy) / spread
        fixed_s = (sy - slope * sx) / n
        if slope <= 0.0 or fixed_s < 0.0:
            return sy / sx * x if slope > 0.0 else sy / n
        return fixed_s + slope * x


def _cell(num_rows: int, elements: int) -> tuple[int, int]:
    """Returns the place in the table: by factors of two in rows, of a half more in length."""
    return num_rows.bit_length(), round(2 * math.log2(max(elements, 1)))


Sizes: TypeAlias = tuple[int, ...]
"""The padded sizes of a task: one for a sequence, two for an image, and so on."""

_MOST_TASKS: Final = 128
"""As many of the oldest are looked at: the plan takes a millisecond for them."""


class LengthWindow:
    """Chooses batches by length, and learns what they take. A ``Window``; confined.

    Args:
        sizes_of: Returns the sizes of a task.
        max_batch_rows: Most rows of one batch.

    """

    def __init__(self, sizes_of: Callable[[Any], Sizes], max_batch_rows: int) -> None:
        self._sizes_of = sizes_of
        self._max_batch_rows = max_batch_rows
        self.costs = BatchCosts()

    ranks_low = False

    def note_arrival(self, num_rows: int, now_s: float) -> None:
        """Does nothing: only what waits counts."""

    def choose(
        self, tasks: Sequence[TaskT], now_s: float
    ) -> tuple[Sequence[TaskT], tuple[()]]:
        """Returns the tasks of the next batch, by length; none is given up."""
        if len(tasks) < 2:
            return tasks, ()
        candidates = sorted(
            tasks[:_MOST_TASKS], key=lambda task: math.prod(self._sizes_of(task))
        )
        sizes = list(map(self._sizes_of, candidates))
        if sizes[0] == sizes[-1]:
            return _that_fit(tasks, self._max_batch_rows), ()
        rows = [task.num_rows for task in candidates]
        predict_s = self.costs.predict_s
        batches = planned_batches(rows, sizes, predict_s, self._max_batch_rows)
        start, stop = self._first(batches, candidates, now_s)
        return candidates[start:stop], ()

    def observe(self, tasks: Sequence[Task], device_s: float) -> bool:
        """Learns how long a batch took."""
        self.costs.observe(*self._extent(tasks), device_s)
        return True

    def _extent(self, tasks: Sequence[Task]) -> tuple[int, int]:
        """Returns the rows of a batch, and the elements of one once it is padded."""
        largest = map(max, zip(*map(self._sizes_of, tasks), strict=True))
        return sum([task.num_rows for task in tasks]), math.prod(largest)

    def _first(
        self,
        batches: Sequence[tuple[int, int]],
        tasks: Sequence[Task],
        now_s: float,
    ) -> tuple[int, int]:
        """Returns the batch that goes first."""
        took_s = [
            self.costs.predict_s(*self._extent(tasks[start:stop]))
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
