"""LBCI as its paper has it, as a rule beside the server's own."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tfs.runtime.guest.layered.rules import Boundary, Rule
from tfs.runtime.guest.layered.stage_times import StageTimes


class PublishedLbci(Rule):
    """LBCI as its paper has it, for comparison: equations 1 to 6, once per run.

    Where the text contradicts itself, what its figures fit is taken: the bound of
    equation 2 lies the fluctuation *below* ``t_opt`` (the product would allow three rows),
    and the factor ``b`` of equation 6 is taken once.

    Args:
        times: The table, measured before; it is not updated.
        bound_s: The user's ``t_opt``.
        fluctuation: The largest mean deviation of equation 2, as a share.

    """

    def __init__(
        self, times: StageTimes, bound_s: float, fluctuation: float = 0.05
    ) -> None:
        self._bound_s = bound_s
        self._num_stages = times.num_stages
        sizes = range(1, times.max_rows + 1)
        totals = [times.total_s(rows) for rows in sizes]
        self._fitted = [0.0, *fitted_times(totals)]
        # r[p][q]: share of the first q stages in the time of p rows.
        self._shares: list[list[float]] = [[]] + [
            [
                times.until_s(stage, rows) / total_s
                if stage < times.num_stages
                else 1.0
                for stage in range(times.num_stages + 1)
            ]
            for rows, total_s in zip(sizes, totals, strict=True)
        ]
        strict_s = bound_s * (1 - fluctuation)
        self._most = max(
            (rows for rows in sizes if self._fitted[rows] <= strict_s), default=1
        )

    @property
    def name(self) -> str:
        return f"lbci-as-published({self._bound_s * 1e3:.0f} ms)"

    def predict_s(self, num_rows: int) -> float:
        """Returns the time of some rows by the fitted equation."""
        return self._fitted[num_rows]

    def most_rows(self, times: StageTimes) -> int:
        return self._most

    def rows_to_join(self, times: StageTimes, at: Boundary) -> int:
        # ``1 < k < x``: nobody joins behind the first stage, though that is best.
        if at.num_joins or at.stage < 2 or at.running >= self._most:
            return 0
        joining = 0
        for more in at.waiting:
            rows = joining + more
            both = at.running + rows
            if both >= len(self._fitted):
                break
            all_s = at.waited_s + at.run_s
            all_s += self._fitted[rows] * self._shares[rows][at.stage]
            behind = min(at.stage + 1, self._num_stages)
            all_s += self._fitted[both] * (1 - self._shares[both][behind])
            if all_s >= self._bound_s:
                break
            joining = rows
        return joining


def fitted_times(totals: Sequence[float]) -> list[float]:
    """Returns times of 1, 2, 3, ... rows by equation 6, fitted to measured ones.

    For each of the two parameters that are not linear a grid is tried; the other two
    follow by least squares.
    """
    sizes = range(1, len(totals) + 1)
    measured = [total_s / rows for rows, total_s in zip(sizes, totals, strict=True)]
    least, best = math.inf, list(measured)
    for knee in (0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0):
        for steepness in (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0):
            xs = [1 / (1 + (rows / knee) ** steepness) for rows in sizes]
            mean_x, mean_y = math.fsum(xs) / len(xs), math.fsum(measured) / len(xs)
            spread = math.fsum((x - mean_x) ** 2 for x in xs) or 1.0
            pairs = zip(xs, measured, strict=True)
            slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in pairs) / spread
            fitted = [max(0.0, mean_y + slope * (x - mean_x)) for x in xs]
            pairs = zip(fitted, measured, strict=True)
            misfit = math.fsum((f - y) ** 2 for f, y in pairs)
            if misfit < least:
                least, best = misfit, fitted
    return [rows * per_row_s for rows, per_row_s in zip(sizes, best, strict=True)]
