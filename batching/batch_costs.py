"""How long batches take by rows and padded length, learned while they are computed."""

from __future__ import annotations

import math
from typing import Final

_WEIGHT: Final = 0.1
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

    __slots__ = ("_cells", "_sums", "num_seen")

    def __init__(self) -> None:
        self.num_seen = 0
        self._sums = [0.0] * 5  # of 1, x, y, xx, xy, older ones counting less
        self._cells: dict[tuple[int, int], float] = {}

    def observe(self, num_rows: int, elements: int, duration_s: float) -> None:
        """Records how long a batch took."""
        if duration_s <= 0.0:
            return
        x = float(num_rows * elements)
        if self.num_seen > 3:
            known_s = self.predict_s(num_rows, elements)
            duration_s = min(duration_s, _LARGEST_JUMP * known_s)
        self.num_seen += 1
        # Relative errors count, so each batch weighs by its time.
        weight = 1.0 / (duration_s * duration_s)
        new = (
            weight,
            weight * x,
            weight * duration_s,
            weight * x * x,
            weight * x * duration_s,
        )
        self._sums = [_FORGETS * a + b for a, b in zip(self._sums, new, strict=True)]
        cell = _cell(num_rows, elements)
        ratio = duration_s / max(self._line(x), 1e-12)
        before = self._cells.get(cell)
        self._cells[cell] = (
            ratio if before is None else before + 2 * _WEIGHT * (ratio - before)
        )

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
