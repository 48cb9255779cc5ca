"""Where the time of a model's requests goes: four phases, measured of those answered."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from threading import get_ident
from typing import Final

from tfs.core import stat_names
from tfs.core.stats import HistogramSnapshot, Labels

PHASES: Final = ("receive", "queue", "compute", "send")

_BOUNDS: Final = stat_names.PHASE_BOUNDS_S
_LEAST_S: Final = _BOUNDS[0]
_WIDTH: Final = len(_BOUNDS) + 1
_QUEUE: Final = _WIDTH
_COMPUTE: Final = 2 * _WIDTH
_SEND: Final = 3 * _WIDTH
_TOTALS: Final = 4 * _WIDTH


class RequestPhases:
    """Histograms of four phases. A :class:`tfs.core.stats.StatSource`; thread-safe.

    All four are counted at once, because a small request takes ten microseconds.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._cells: dict[int, list[float]] = {}

    def observe(
        self,
        receive_s: float,
        queue_s: float,
        compute_s: float,
        send_s: float,
        num: int,
    ) -> None:
        """Counts ``num`` requests that took so long."""
        cell = self._cells.get(get_ident())
        if cell is None:
            cell = self._cells[get_ident()] = [0.0] * (_TOTALS + len(PHASES))
        # Most phases of small requests are in the first bucket.
        cell[0 if receive_s <= _LEAST_S else bisect_left(_BOUNDS, receive_s)] += num
        index = 0 if queue_s <= _LEAST_S else bisect_left(_BOUNDS, queue_s)
        cell[_QUEUE + index] += num
        index = 0 if compute_s <= _LEAST_S else bisect_left(_BOUNDS, compute_s)
        cell[_COMPUTE + index] += num
        index = 0 if send_s <= _LEAST_S else bisect_left(_BOUNDS, send_s)
        cell[_SEND + index] += num
        cell[_TOTALS] += num * receive_s
        cell[_TOTALS + 1] += num * queue_s
        cell[_TOTALS + 2] += num * compute_s
        cell[_TOTALS + 3] += num * send_s

    def counters(self) -> Iterable[tuple[str, Labels, float]]:
        """Returns none."""
        return ()

    def histograms(self) -> Iterable[tuple[str, Labels, HistogramSnapshot]]:
        """Yields the phases, once the model had a request."""
        cells = list(self._cells.values())
        if not cells:
            return
        sums = [sum(column) for column in zip(*cells, strict=True)]
        for index, phase in enumerate(PHASES):
            counts = tuple(map(int, sums[index * _WIDTH : (index + 1) * _WIDTH]))
            labels = ("model", self._model), ("phase", phase)
            yield (
                stat_names.REQUEST_PHASE_S,
                labels,
                HistogramSnapshot(_BOUNDS, counts, sums[_TOTALS + index]),
            )
