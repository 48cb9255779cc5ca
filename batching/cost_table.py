"""How long batches take, by size: measured before serving and updated while serving.

It is a table and not a formula because kernels have steps (a matrix product over 12
rows can take longer than over 16), and padding and sizing make use of these steps.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import inf

_ALPHA = 0.1  # weight of a new observation, after the first ten
_CLOSE = 0.97  # a size within 3 % of the best rate is as good
_CHEAPER = 0.9  # a step of a kernel is larger; a smaller difference may be noise
# Smaller differences may be noise, and joining with padding has a cost.
_PADDING_S = 100e-6
_NUM_TO_COMPARE = 3  # observations that a size needs to be compared
_LARGEST_JUMP = 3.0  # a batch that took longer than this many means was interrupted


class CostTable:
    """Seconds of one batch by rows. Confined to one thread.

    Attributes:
        num_changes: Grows whenever a prediction changes.

    """

    def __init__(self, call_s_by_rows: Mapping[int, float] | None = None) -> None:
        self._call_s = dict(call_s_by_rows or {})
        self._measured = frozenset(self._call_s)
        self._sizes = sorted(self._call_s)
        # Observations while serving, for comparing sizes. They include the way to the
        # device, which measurements made beforehand do not.
        self._seen_s: dict[int, float] = {}
        self._num_seen: dict[int, int] = {}
        self.num_changes = 0

    def __bool__(self) -> bool:
        """Whether anything was measured."""
        return bool(self._sizes)

    @property
    def sizes(self) -> Sequence[int]:
        """The sizes measured, ascending."""
        return tuple(self._sizes)

    def observe(self, num_rows: int, duration_s: float) -> None:
        """Records how long a batch of ``num_rows`` rows, padding included, took."""
        seen_s = duration_s
        known = self._call_s.get(num_rows)
        if known is None:
            # The first run of a size is often the slowest, so a table made beforehand
            # counts for more than one such run.
            expected = self.predict_s(num_rows)
            if expected:
                duration_s = expected + 0.5 * (duration_s - expected)
            self._call_s[num_rows] = duration_s
            self._sizes.insert(bisect_left(self._sizes, num_rows), num_rows)
        else:
            num = self._num_seen.get(num_rows, 0)
            is_measured = num_rows in self._measured
            alpha = _ALPHA if is_measured else max(_ALPHA, 1 / (num + 1))
            if is_measured or num >= _NUM_TO_COMPARE:
                duration_s = min(duration_s, _LARGEST_JUMP * known)
            if 0 < duration_s * _LARGEST_JUMP < known:
                # The batches before were interrupted. Nothing makes one so much quicker
                # by accident, so a few are enough to forget them.
                self._call_s[num_rows] = math.sqrt(known * duration_s)
            else:
                self._call_s[num_rows] = known + alpha * (duration_s - known)
        self._note_seen(num_rows, seen_s)
        self.num_changes += 1

    def _note_seen(self, num_rows: int, duration_s: float) -> None:
        num = self._num_seen.get(num_rows, 0)
        mean_s = self._seen_s.get(num_rows, 0.0)
        if num >= _NUM_TO_COMPARE:
            duration_s = min(duration_s, _LARGEST_JUMP * mean_s)
        alpha = max(_ALPHA, 1 / (num + 1))
        self._seen_s[num_rows] = mean_s + alpha * (duration_s - mean_s)
        self._num_seen[num_rows] = num + 1

    def predict_s(self, num_rows: int) -> float:
        """Returns the seconds of a batch of that size; 0 if nothing was measured.

        It interpolates linearly between two sizes. Above the largest size times grow in
        proportion, and below the smallest they stay the same.
        """
        sizes = self._sizes
        if not sizes:
            return 0.0
        index = bisect_left(sizes, num_rows)
        if index == len(sizes):
            return self._beyond(num_rows)
        upper = sizes[index]
        upper_s = self._call_s[upper]
        if upper == num_rows or index == 0:
            return upper_s
        lower = sizes[index - 1]
        lower_s = self._call_s[lower]
        share = (num_rows - lower) / (upper - lower)
        return lower_s + share * (upper_s - lower_s)

    def _beyond(self, num_rows: int) -> float:
        last = self._sizes[-1]
        return self._call_s[last] * num_rows / last

    def doubt(self, num_rows: int) -> None:
        """Compares a size with no other until it was seen a few more times."""
        self._num_seen[num_rows] = 0
        self.num_changes += 1

    def cheaper_sizes(
        self, sizes: Sequence[int], cheaper: float = _CHEAPER
    ) -> Mapping[int, int]:
        """Returns, for each size that has a cheaper larger one, the cheapest.

        A size is cheaper if it costs less than ``cheaper`` times as much. Only times of
        the same kind are compared: either both sizes were seen a few times while
        serving, or neither was and both were measured beforehand.
        """
        found: dict[int, int] = {}
        seen = {
            size: self._seen_s[size]
            for size in sizes
            if self._num_seen.get(size, 0) >= _NUM_TO_COMPARE
        }
        unseen = {
            size: self._call_s[size]
            for size in sizes
            if size in self._measured and size not in self._num_seen
        }
        for group in (seen, unseen):
            best, best_s = 0, inf
            for size in sorted(group, reverse=True):
                size_s = group[size]
                if best_s < min(size_s * cheaper, size_s - _PADDING_S):
                    found[size] = best
                if size_s < best_s:
                    best, best_s = size, size_s
        return found

    def best_batch_rows(self) -> int | None:
        """Returns the smallest measured size within 3 % of the best rows per second.

        More rows would add latency and no throughput. None if nothing was measured.
        """
        if not self._sizes:
            return None
        rates = {size: size / max(self._call_s[size], 1e-12) for size in self._sizes}
        best = max(rates.values())
        return next(size for size in self._sizes if rates[size] >= best * _CLOSE)

    def smallest_keeping_up(self, rows_per_s: float) -> int | None:
        """Returns the smallest measured size whose rate reaches ``rows_per_s``.

        If none does, it is the most efficient size; None if nothing was measured.
        """
        for size in self._sizes:
            if size >= rows_per_s * self._call_s[size]:
                return size
        return self.best_batch_rows()
