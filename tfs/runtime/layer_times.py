"""How long each layer of a part takes, by the number of rows: measured while it computes.

It is a table and not a fitted curve, because kernels are not monotone in their rows (a
matrix product over 12 rows can take longer than over 16), and because the share of the
time that a layer takes depends on the rows, too. (LBCI, section 3.1, builds such a
table once; this one is kept up to date.)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Final

_WEIGHT: Final = 0.2
"""Weight of a new measurement; a machine's speed drifts by a fifth within minutes."""

_RATE_EVERY: Final = 64
"""The best rate is computed anew after so many runs, because that takes the whole table."""


class LayerTimes:
    """Seconds by layer and rows. Confined to the caller that computes at the moment.

    Sums are computed when ``begin`` is called and stay until the next time. To add up
    twenty layers for each size at each layer would cost a tenth of the layers' own
    time.

    Args:
        num_layers: How many layers there are.
        max_rows: Most rows at once.

    """

    def __init__(self, num_layers: int, max_rows: int) -> None:
        self.num_layers = num_layers
        self.max_rows = max_rows
        self._measured: list[dict[int, float]] = [{} for _ in range(num_layers)]
        self._sizes: list[list[int]] = [[] for _ in range(num_layers)]  # ascending
        self._join_s_per_row = [0.0] * num_layers
        # Sums that follow from them.
        self._sums: dict[int, list[float]] = {}
        self._best_rate = 0.0
        self._num_begun = 0

    def note(self, layer: int, num_rows: int, duration_s: float) -> None:
        """Records how long a layer took."""
        table = self._measured[layer]
        before = table.get(num_rows)
        if before is None:
            insort(self._sizes[layer], num_rows)
            table[num_rows] = duration_s
        else:
            table[num_rows] = before + _WEIGHT * (duration_s - before)

    def note_join(self, layer: int, num_rows: int, duration_s: float) -> None:
        """Records how long it took to make one batch of two before a layer.

        Activations are joined, which may be a megabyte per row after a first
        convolution.
        """
        per_row_s = duration_s / num_rows
        before = self._join_s_per_row[layer]
        self._join_s_per_row[layer] = (
            before + _WEIGHT * (per_row_s - before) if before else per_row_s
        )

    def join_s(self, layer: int, num_rows: int) -> float:
        """Returns the time for that; 0 if none was recorded."""
        return self._join_s_per_row[layer] * num_rows

    def begin(self) -> None:
        """Makes all answers from now on use everything that is recorded so far."""
        self._sums.clear()
        self._num_begun += 1
        if self._num_begun % _RATE_EVERY == 0:
            self._best_rate = 0.0

    @property
    def are_known(self) -> bool:
        """Whether there is enough to tell how times grow: two sizes of each layer."""
        return all(len(sizes) >= 2 for sizes in self._sizes)

    def until_s(self, layer: int, num_rows: int) -> float:
        """Returns the time of the layers before ``layer``. Requires ``are_known``."""
        return self._sums_of(num_rows)[layer]

    def from_s(self, layer: int, num_rows: int) -> float:
        """Returns the time of ``layer`` and those behind it. Requires ``are_known``."""
        sums = self._sums_of(num_rows)
        return sums[-1] - sums[layer]

    def total_s(self, num_rows: int) -> float:
        """Returns the time of all layers; 0 for no rows. Requires ``are_known``."""
        return self._sums_of(num_rows)[-1] if num_rows else 0.0

    @property
    def best_rate(self) -> float:
        """Most rows a second, over all sizes. Requires ``are_known``."""
        if not self._best_rate:
            sizes = {size for sizes in self._sizes for size in sizes}
            self._best_rate = max(
                size / max(self.total_s(size), 1e-9) for size in {*sizes, self.max_rows}
            )
        return self._best_rate

    def _sums_of(self, num_rows: int) -> list[float]:
        """Returns the time before each layer, and as the last item that of all layers."""
        sums = self._sums.get(num_rows)
        if sums is None:
            sums = [0.0]
            for table, sizes in zip(self._measured, self._sizes, strict=True):
                sums.append(sums[-1] + _interpolated(table, sizes, num_rows))
            self._sums[num_rows] = sums
        return sums


def _interpolated(
    table: dict[int, float], sizes: Sequence[int], num_rows: int
) -> float:
    """Returns the time for a size, between or beyond those that were measured."""
    if num_rows in table:
        return table[num_rows]
    index = min(max(bisect_left(sizes, num_rows), 1), len(sizes) - 1)
    low, high = sizes[index - 1], sizes[index]
    slope = (table[high] - table[low]) / (high - low)
    if num_rows > high:
        return table[high] + max(0.0, slope) * (num_rows - high)
    return max(0.0, table[low] + slope * (num_rows - low))
