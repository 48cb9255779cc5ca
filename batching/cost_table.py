"""How long a batch takes by its size: measured before, kept up to date while serving.

A table and not a formula: kernels have steps (a matrix product over 12 rows can take
longer than over 16), and the steps are what padding and sizing live from.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

_ALPHA = 0.1  # weight of a new observation, once there were ten
_CLOSE = 0.97  # sizes within 3 % of the best are as good
_CHEAPER = 0.9  # steps of kernels are larger; less may be measuring noise
_PADDING_S = 20e-6  # what joining a batch with its padding costs at least
_NUM_TO_KNOW = 3  # observations that make a size known


class CostTable:
    """Seconds of one batch by rows. Confined to one thread.

    Attributes:
        num_changes: Grows whenever a prediction changes.

    """

    __slots__ = ("_call_s", "_num_observed", "_sizes", "num_changes")

    def __init__(self, call_s_by_rows: Mapping[int, float] | None = None) -> None:
        self._call_s = dict(call_s_by_rows or {})
        self._sizes = sorted(self._call_s)
        self._num_observed: dict[int, int] = {}  # of sizes that came later
        self.num_changes = 0

    def __bool__(self) -> bool:
        """Whether anything was measured."""
        return bool(self._sizes)

    @property
    def sizes(self) -> Sequence[int]:
        """The sizes measured, ascending."""
        return tuple(self._sizes)

    def observe(self, num_rows: int, duration_s: float) -> None:
        """Takes in one batch that ran with ``num_rows`` rows, padding included."""
        known = self._call_s.get(num_rows)
        if known is None:
            # The first run of a size is often the slowest; a table made beforehand
            # says more than one such run.
            expected = self.predict_s(num_rows)
            if expected:
                duration_s = expected + 0.5 * (duration_s - expected)
            self._call_s[num_rows] = duration_s
            self._num_observed[num_rows] = 1
            self._sizes.insert(bisect_left(self._sizes, num_rows), num_rows)
        else:
            alpha = _ALPHA
            num = self._num_observed.get(num_rows)
            if num is not None:
                self._num_observed[num_rows] = num + 1
                alpha = max(alpha, 1 / (num + 1))
            self._call_s[num_rows] = known + alpha * (duration_s - known)
        self.num_changes += 1

    def predict_s(self, num_rows: int) -> float:
        """Returns seconds for a batch of that size, 0 if nothing was measured.

        Between two sizes on the line between them; outside, in proportion above and
        constant below.
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

    def knows(self, num_rows: int) -> bool:
        """Whether this size was measured beforehand, or seen a few times."""
        num = self._num_observed.get(num_rows, _NUM_TO_KNOW)
        return num_rows in self._call_s and num >= _NUM_TO_KNOW

    def forget_seen(self, num_rows: int) -> None:
        """Drops what was only seen of a size, so that it is looked at again."""
        if self._num_observed.pop(num_rows, None) is not None:
            del self._call_s[num_rows]
            self._sizes.remove(num_rows)
            self.num_changes += 1

    def cheapest(self, num_rows: int, sizes: Sequence[int]) -> int:
        """Returns which of ``sizes`` (ascending) to pad ``num_rows`` rows to.

        That is the first that holds them, unless both are known and a larger one
        costs a tenth less; ``num_rows`` itself if none holds them.
        """
        index = bisect_left(sizes, num_rows)
        if index == len(sizes):
            return num_rows
        best = sizes[index]
        if not self.knows(best):
            return best  # the smallest is the best guess
        most_s = min(self._call_s[best] * _CHEAPER, self._call_s[best] - _PADDING_S)
        for size in sizes[index + 1 :]:
            if self.knows(size) and self._call_s[size] < most_s:
                best, most_s = size, self._call_s[size]
        return best

    def best_batch_rows(self, limit: int | None = None) -> int | None:
        """Returns the smallest measured size within 3 % of the best rows per second.

        More rows would add latency and no throughput. None if nothing was measured.
        """
        sizes = [size for size in self._sizes if limit is None or size <= limit]
        if not sizes:
            return None
        rates = {size: size / max(self._call_s[size], 1e-12) for size in sizes}
        best = max(rates.values())
        return next(size for size in sizes if rates[size] >= best * _CLOSE)

    def smallest_keeping_up(self, rows_per_s: float) -> int | None:
        """Returns the smallest measured size whose rate reaches ``rows_per_s``.

        The most efficient size if none does; None if nothing was measured.
        """
        for size in self._sizes:
            if size >= rows_per_s * self._call_s[size]:
                return size
        return self.best_batch_rows()
