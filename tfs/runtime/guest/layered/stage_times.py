"""How long each stage of a model takes, by the number of rows: measured while it computes.

It is a table and not a fitted curve, because kernels are not monotone in their rows (a
matrix product over 12 rows can take longer than over 16), and because the share of the
time that a stage takes depends on the rows, too. (LBCI, section 3.1, builds such a
table once; this one is kept up to date.) Where more rows are cheaper, a stage is padded to
them, and its time is that of the padded rows.
"""

from __future__ import annotations

import copy
import math
from bisect import bisect_left
from collections import deque
from typing import Final

_WEIGHT: Final = 0.03
_DRIFT_WEIGHT: Final = 0.15
"""Weights of a new measurement, for its size and for all sizes of its stage: a machine's
speed drifts by a fifth within minutes, while one size seldom changes beside the others."""

_LARGEST_JUMP: Final = 3.0  # a stage that took this many times as long was interrupted

_NOISE: Final = 0.03  # less of a difference is none, and so is less than the errors

_NUM_ERRORS: Final = 256
_LEAST_MARGIN: Final = 1.05

_RATE_EVERY: Final = 64
"""The best rate is computed anew after so many runs, because that takes the whole table."""


class StageTimes:
    """Seconds by stage and rows. Confined to the caller that computes at the moment.

    Sums are computed when they are first asked for after ``begin``, and stay until the next
    time. To add up twenty stages for each size at each stage would cost a tenth of the
    stages' own time. All answers but ``best_rows`` require ``are_known``.

    Args:
        num_stages: How many stages there are.
        max_rows: Most rows at once.
        pads: Whether stages are padded where that is cheaper.

    Attributes:
        margin: What predictions are multiplied by where a deadline depends on them: of
            twenty runs one takes longer.
        errors: By how much the last measured times differed from what was predicted,
            as shares of that.

    """

    def __init__(self, num_stages: int, max_rows: int, *, pads: bool = True) -> None:
        self.num_stages = num_stages
        self.max_rows = max_rows
        self.margin = _LEAST_MARGIN
        self.errors: deque[float] = deque(maxlen=_NUM_ERRORS)
        self._pads = pads
        # By stage, ascending.
        self._measured: list[dict[int, float]] = [{} for _ in range(num_stages)]
        # What all times of a stage are multiplied by: it drifts as a whole.
        self._drift = [1.0] * num_stages
        self._join_s_per_row = [0.0] * num_stages
        # What follows from them: by rows, the times before each stage and of all, and
        # the rows to which each is padded.
        self._sums: dict[int, tuple[list[float], list[int]]] = {}
        self._best: tuple[float, int] | None = None
        self._cheaper = 1.0 - _NOISE
        self._num_begun = 0

    def frozen(self) -> StageTimes:
        """Returns a copy, for another thread; call it between two runs."""
        return copy.deepcopy(self)

    def put(self, stage: int, num_rows: int, duration_s: float) -> None:
        """Sets how long a stage takes, as measured with care."""
        table = {**self._measured[stage], num_rows: duration_s / self._drift[stage]}
        self._measured[stage] = dict(sorted(table.items()))

    def note(self, stage: int, num_rows: int, duration_s: float) -> None:
        """Learns from how long a stage took once, while serving."""
        table = self._measured[stage]
        known_s = _interpolated(table, num_rows) * self._drift[stage]
        if known_s <= 0.0 or (num_rows not in table and len(table) < 2):
            self.put(stage, num_rows, duration_s)
            return
        change = duration_s / known_s - 1.0
        change = max(1 / _LARGEST_JUMP - 1, min(change, _LARGEST_JUMP - 1))
        self.errors.append(change)
        if num_rows not in table:
            self.put(stage, num_rows, known_s * (1 + change / 4))
            return
        table[num_rows] *= 1 + _WEIGHT * change
        self._drift[stage] *= 1 + _DRIFT_WEIGHT * change

    def note_join(self, stage: int, num_rows: int, duration_s: float) -> None:
        """Records how long it took to make one batch of two before a stage.

        Activations are joined, which may be a megabyte per row after a first
        convolution.
        """
        per_row_s, before = duration_s / num_rows, self._join_s_per_row[stage]
        change_s = per_row_s - before
        self._join_s_per_row[stage] += _DRIFT_WEIGHT * change_s if before else change_s

    def begin(self) -> None:
        """Makes all answers from now on use everything that is recorded so far."""
        self._sums.clear()
        if self.errors:
            mean = math.fsum(map(abs, self.errors)) / len(self.errors)
            self._cheaper = 1.0 - max(_NOISE, mean)
            worst = sorted(self.errors)[len(self.errors) * 19 // 20]
            self.margin = max(_LEAST_MARGIN, 1.0 + worst)
        self._num_begun += 1
        if self._num_begun % _RATE_EVERY == 0:
            self._best = None

    @property
    def are_known(self) -> bool:
        """Whether there is enough to tell how times grow: two sizes of each stage."""
        return all(len(table) >= 2 for table in self._measured)

    def until_s(self, stage: int, num_rows: int) -> float:
        """Returns the time of the stages before ``stage``."""
        return self._sums_of(num_rows)[0][stage]

    def from_s(self, stage: int, num_rows: int) -> float:
        """Returns the time of ``stage`` and those behind it."""
        sums, _ = self._sums_of(num_rows)
        return sums[-1] - sums[stage]

    def stage_s(self, stage: int, num_rows: int) -> float:
        """Returns the time of one stage."""
        sums, _ = self._sums_of(num_rows)
        return sums[stage + 1] - sums[stage]

    def total_s(self, num_rows: int) -> float:
        """Returns the time of all stages; 0 for no rows."""
        return self._sums_of(num_rows)[0][-1] if num_rows else 0.0

    def padded(self, stage: int, num_rows: int) -> int:
        """Returns for how many rows to compute a stage, so that it takes least."""
        return self._sums_of(num_rows)[1][stage]

    def join_s(self, stage: int, num_rows: int) -> float:
        """Returns the time to make one batch of two; 0 if none was recorded."""
        return self._join_s_per_row[stage] * num_rows

    @property
    def best_rate(self) -> float:
        """Most rows a second, over all sizes."""
        return self._best_of_all()[0]

    @property
    def best_rows(self) -> int:
        """The fewest rows that come close to that; more only take longer.

        If the most that were measured do best, more still may, and so before
        ``are_known``.
        """
        return self._best_of_all()[1] if self.are_known else self.max_rows

    def _best_of_all(self) -> tuple[float, int]:
        if self._best is None:
            known = set(self._measured[0]).intersection(*self._measured[1:])
            rates = {
                size: size / max(self.total_s(size), 1e-9)
                for size in known | {self.max_rows}
                if size <= self.max_rows
            }
            best = max(rates.values())
            rows = min(r for r in rates if rates[r] >= (1 - _NOISE) * best)
            self._best = best, rows if rows < max(known, default=0) else self.max_rows
        return self._best

    def _sums_of(self, num_rows: int) -> tuple[list[float], list[int]]:
        found = self._sums.get(num_rows)
        if found is None:
            sums, padded = found = [0.0], []
            for table, drift in zip(self._measured, self._drift, strict=True):
                rows, stage_s = num_rows, _interpolated(table, num_rows)
                for size, size_s in table.items() if self._pads else ():
                    is_more = num_rows < size <= self.max_rows
                    if is_more and size_s < self._cheaper * stage_s:
                        rows, stage_s = size, size_s
                padded.append(rows)
                sums.append(sums[-1] + drift * stage_s)
            self._sums[num_rows] = found
        return found


def _interpolated(table: dict[int, float], num_rows: int) -> float:
    """Returns the time for a size, between or beyond those that were measured."""
    if num_rows in table or len(table) < 2:
        return table.get(num_rows, sum(table.values()))
    sizes = list(table)
    index = min(max(bisect_left(sizes, num_rows), 1), len(sizes) - 1)
    low, high = sizes[index - 1], sizes[index]
    slope = (table[high] - table[low]) / (high - low)
    if num_rows > high:
        slope = max(0.0, slope)
    return max(0.0, table[high] + slope * (num_rows - high))
