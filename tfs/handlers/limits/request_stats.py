"""What is counted of the requests to one signature of one version."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from threading import get_ident
from typing import Final

from tfs.core import stat_names
from tfs.core.clock import Clock
from tfs.core.errors import Code
from tfs.core.stats import Counter, HistogramSnapshot, Labels, Stats
from tfs.core.tensor_view import LARGE_BYTES

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


_OK: Final = Code.OK  # kept because looking a member up in an enum is slow


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """Requests to a signature of a version so far. Immutable.

    Attributes:
        num_by_code: How many ended with which code, by number.
        num_in_flight: How many have not ended.
        latency_s: Seconds from the handler's start to the end.

    """

    num_by_code: Mapping[Code, int]
    num_in_flight: int
    latency_s: HistogramSnapshot

    def __add__(self, other: RequestFigures) -> RequestFigures:
        """Returns the sum of both."""
        return RequestFigures(
            Counts(self.num_by_code) + Counts(other.num_by_code),
            self.num_in_flight + other.num_in_flight,
            self.latency_s + other.latency_s,
        )


class RequestStats:
    """The counters of one model, version, method and signature.

    ``begin`` belongs to the serving loop; the rest is thread-safe.

    Attributes:
        answer_bytes: How long the next answer is expected to be, if that is long: as the
            last one, but at least what the signature fixes; else 0.
        is_forgotten: Whether the counters are no longer read by anybody.

    Args:
        least_answer_bytes: What the signature fixes.

    """

    __slots__ = (
        "_by_code",
        "_labels",
        "_latency",
        "_least_answer_bytes",
        "_now",
        "_num_begun",
        "_phases",
        "_stats",
        "answer_bytes",
        "is_forgotten",
    )

    def __init__(
        self,
        stats: Stats,
        clock: Clock,
        method: str,
        model: str = "",
        version: str = "",
        signature: str = "",
        phases: RequestPhases | None = None,
        least_answer_bytes: int = 0,
    ) -> None:
        self._least_answer_bytes = least_answer_bytes
        self.note_answer(0)
        self._stats = stats
        self._phases = phases
        self._now = clock.now
        self._labels = {
            "method": method,
            "model": model,
            "version": version,
            "signature": signature,
        }
        self._latency = stats.histogram(
            stat_names.REQUEST_LATENCY_S, stat_names.LATENCY_BOUNDS_S, **self._labels
        )
        self._by_code: dict[Code, Counter] = {}
        self._num_begun = 0
        self.is_forgotten = False

    def begin(self, num: int = 1) -> None:
        """Counts ``num`` requests that will end."""
        self._num_begun += num

    def take_back(self) -> None:
        """Takes a :meth:`begin` back; the request will begin again."""
        self._num_begun -= 1

    def note_answer(self, num_bytes: int) -> None:
        """Notes how long an answer was."""
        if num_bytes < LARGE_BYTES:
            num_bytes = self._least_answer_bytes
        self.answer_bytes = num_bytes if num_bytes >= LARGE_BYTES else 0

    def end(self, code: Code, begun_s: float, num: int = 1) -> None:
        """Counts the end of ``num`` requests that began at ``begun_s``."""
        self._counter(code).add(num)
        self._latency.observe(self._now() - begun_s, num)

    def end_answered(
        self,
        opened_s: float,
        begun_s: float,
        started_s: float | None,
        done_s: float,
        num: int = 1,
    ) -> None:
        """Counts requests that were answered, and where their time went.

        Args:
            opened_s: When the headers of the first arrived.
            begun_s: When their handler began.
            started_s: When the model began; None if it had nothing to wait for.
            done_s: When the outputs were there.
            num: How many; they were begun and computed together.

        """
        now_s = self._now()
        (self._by_code.get(_OK) or self._counter(_OK)).add(num)
        self._latency.observe(now_s - begun_s, num)
        if self._phases is not None:
            # Batches have the time of the scheduler's round, in which requests come.
            if started_s is None or started_s < begun_s:
                started_s = begun_s
            self._phases.observe(
                begun_s - opened_s,
                started_s - begun_s,
                done_s - started_s,
                now_s - done_s,
                num,
            )

    def _counter(self, code: Code) -> Counter:
        counter = self._by_code.get(code)
        if counter is None:
            counter = self._by_code[code] = self._stats.counter(
                stat_names.REQUESTS, status=code.name, **self._labels
            )
        return counter

    def figures(self) -> RequestFigures:
        """Returns what was counted so far."""
        latency_s = self._latency.snapshot()
        return RequestFigures(
            {code: int(each.value) for code, each in self._by_code.copy().items()},
            max(0, self._num_begun - latency_s.num),
            latency_s,
        )

    def forget(self) -> None:
        """Removes the counters from the server's registry; later counts are lost."""
        self.is_forgotten = True
        self._stats.remove(stat_names.REQUEST_LATENCY_S, **self._labels)
        for code in self._by_code.copy():
            self._stats.remove(stat_names.REQUESTS, status=code.name, **self._labels)
