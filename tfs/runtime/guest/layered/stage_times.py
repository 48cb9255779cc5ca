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
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping, Sequence
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

    Sums are computed when ``begin`` is called and stay until the next time. To add up
    twenty stages for each size at each stage would cost a tenth of the stages' own
    time.

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
        self._measured: list[dict[int, float]] = [{} for _ in range(num_stages)]
        self._sizes: list[list[int]] = [[] for _ in range(num_stages)]  # ascending
        # What all times of a stage are multiplied by: it drifts as a whole.
        self._drift = [1.0] * num_stages
        self._join_s_per_row = [0.0] * num_stages
        # What follows from them.
        self._sums: dict[int, list[float]] = {}
        self._padded: dict[int, list[int]] = {}
        self._best_known: tuple[float, int] | None = None
        self._cheaper = 1.0 - _NOISE
        self._num_begun = 0

    @classmethod
    def of(
        cls,
        table: Sequence[Mapping[int, float]],
        max_rows: int,
        *,
        pads: bool = True,
    ) -> StageTimes:
        """Returns times that were measured before: by stage, seconds by rows."""
        times = cls(len(table), max_rows, pads=pads)
        for stage, measured in enumerate(table):
            for rows, duration_s in measured.items():
                times.put(stage, rows, duration_s)
        return times

    @property
    def table(self) -> list[dict[int, float]]:
        """The seconds of each stage by rows, as far as they were measured."""
        return [
            {rows: drift * known_s for rows, known_s in measured.items()}
            for measured, drift in zip(self._measured, self._drift, strict=True)
        ]

    def frozen(self) -> StageTimes:
        """Returns a copy, for another thread; call it between two runs."""
        return copy.deepcopy(self)

    def put(self, stage: int, num_rows: int, duration_s: float) -> None:
        """Sets how long a stage takes, as measured with care."""
        table = self._measured[stage]
        if num_rows not in table:
            insort(self._sizes[stage], num_rows)
        table[num_rows] = duration_s / self._drift[stage]

    def note(self, stage: int, num_rows: int, duration_s: float) -> None:
        """Learns from how long a stage took once, while serving."""
        table, sizes = self._measured[stage], self._sizes[stage]
        known_s = _interpolated(table, sizes, num_rows) if sizes else 0.0
        if known_s <= 0.0 or (num_rows not in table and len(sizes) < 2):
            self.put(stage, num_rows, duration_s)
            return
        change = duration_s / (known_s * self._drift[stage]) - 1.0
        change = max(1 / _LARGEST_JUMP - 1, min(change, _LARGEST_JUMP - 1))
        self.errors.append(change)
        if num_rows not in table:
            self.put(stage, num_rows, known_s * self._drift[stage] * (1 + change / 4))
            return
        table[num_rows] *= 1 + _WEIGHT * change
        self._drift[stage] *= 1 + _DRIFT_WEIGHT * change

    def note_join(self, stage: int, num_rows: int, duration_s: float) -> None:
        """Records how long it took to make one batch of two before a stage.

        Activations are joined, which may be a megabyte per row after a first
        convolution.
        """
        per_row_s = duration_s / num_rows
        before = self._join_s_per_row[stage]
        self._join_s_per_row[stage] = (
            before + _DRIFT_WEIGHT * (per_row_s - before) if before else per_row_s
        )

    def join_s(self, stage: int, num_rows: int) -> float:
        """Returns the time for that; 0 if none was recorded."""
        return self._join_s_per_row[stage] * num_rows

    def begin(self) -> None:
        """Makes all answers from now on use everything that is recorded so far."""
        self._sums.clear()
        self._padded.clear()
        error = math.fsum(map(abs, self.errors)) / max(len(self.errors), 1)
        self._cheaper = 1.0 - max(_NOISE, error)
        if self.errors:
            worst = sorted(self.errors)[len(self.errors) * 19 // 20]
            self.margin = max(_LEAST_MARGIN, 1.0 + worst)
        self._num_begun += 1
        if self._num_begun % _RATE_EVERY == 0:
            self._best_known = None

    @property
    def are_known(self) -> bool:
        """Whether there is enough to tell how times grow: two sizes of each stage."""
        return all(len(sizes) >= 2 for sizes in self._sizes)

    def until_s(self, stage: int, num_rows: int) -> float:
        """Returns the time of the stages before ``stage``. Requires ``are_known``."""
        return self._sums_of(num_rows)[stage]

    def from_s(self, stage: int, num_rows: int) -> float:
        """Returns the time of ``stage`` and those behind it. Requires ``are_known``."""
        sums = self._sums_of(num_rows)
        return sums[-1] - sums[stage]

    def stage_s(self, stage: int, num_rows: int) -> float:
        """Returns the time of one stage. Requires ``are_known``."""
        sums = self._sums_of(num_rows)
        return sums[stage + 1] - sums[stage]

    def total_s(self, num_rows: int) -> float:
        """Returns the time of all stages; 0 for no rows. Requires ``are_known``."""
        return self._sums_of(num_rows)[-1] if num_rows else 0.0

    def padded(self, stage: int, num_rows: int) -> int:
        """Returns for how many rows to compute a stage, so that it takes least."""
        padded = self._padded.get(num_rows)
        if padded is None:
            self._sums_of(num_rows)
            padded = self._padded[num_rows]
        return padded[stage]

    @property
    def best_rate(self) -> float:
        """Most rows a second, over all sizes. Requires ``are_known``."""
        return self._best()[0]

    @property
    def best_rows(self) -> int:
        """The fewest rows that come close to that; more only take longer.

        If the most that were measured do best, more still may.
        """
        return self._best()[1]

    def _best(self) -> tuple[float, int]:
        if self._best_known is None:
            known = set(self._sizes[0]).intersection(*self._sizes[1:])
            rates = {
                size: size / max(self.total_s(size), 1e-9)
                for size in sorted({*known, self.max_rows})
                if size <= self.max_rows
            }
            best = max(rates.values())
            close = [s for s in known if rates.get(s, 0.0) >= (1 - _NOISE) * best]
            rows = min(close, default=self.max_rows)
            if rows == max(known):
                rows = self.max_rows
            self._best_known = best, rows
        return self._best_known

    def _sums_of(self, num_rows: int) -> list[float]:
        """Returns the time before each stage, and as the last item that of all stages."""
        sums = self._sums.get(num_rows)
        if sums is None:
            sums, padded = [0.0], []
            stages = zip(self._measured, self._sizes, self._drift, strict=True)
            for table, sizes, drift in stages:
                rows, stage_s = num_rows, 0.0
                if sizes:
                    stage_s = _interpolated(table, sizes, num_rows)
                larger = bisect_left(sizes, num_rows + 1) if self._pads else len(sizes)
                for size in sizes[larger:]:
                    if size <= self.max_rows and table[size] < self._cheaper * stage_s:
                        rows, stage_s = size, table[size]
                padded.append(rows)
                sums.append(sums[-1] + drift * stage_s)
            self._sums[num_rows] = sums
            self._padded[num_rows] = padded
        return sums


def _interpolated(
    table: dict[int, float], sizes: Sequence[int], num_rows: int
) -> float:
    """Returns the time for a size, between or beyond those that were measured."""
    if num_rows in table or len(sizes) == 1:
        return table[num_rows if num_rows in table else sizes[0]]
    index = min(max(bisect_left(sizes, num_rows), 1), len(sizes) - 1)
    low, high = sizes[index - 1], sizes[index]
    slope = (table[high] - table[low]) / (high - low)
    if num_rows > high:
        return table[high] + max(0.0, slope) * (num_rows - high)
    return max(0.0, table[low] + slope * (num_rows - low))
