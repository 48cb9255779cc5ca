"""What is counted of the requests to one signature of one version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfs.core import stat_names
from tfs.core.clock import Clock
from tfs.core.errors import Code
from tfs.core.stats import Counter, HistogramSnapshot, Stats


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


class RequestStats:
    """The counters of one model, version, method and signature.

    ``begin`` belongs to the serving loop; the rest is thread-safe.

    Attributes:
        is_forgotten: Whether the counters are no longer read by anybody.

    """

    __slots__ = (
        "_by_code",
        "_labels",
        "_latency",
        "_now",
        "_num_begun",
        "_stats",
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
    ) -> None:
        self._stats = stats
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

    def begin(self) -> None:
        """Counts a request that will end."""
        self._num_begun += 1

    def begin_all(self, num: int) -> None:
        """Counts ``num`` requests that will end."""
        self._num_begun += num

    def take_back(self) -> None:
        """Takes a :meth:`begin` back; the request will begin again."""
        self._num_begun -= 1

    def end(self, code: Code, begun_s: float) -> None:
        """Counts the end of a request that began at ``begun_s``."""
        self._counter(code).add()
        self._latency.observe(self._now() - begun_s)

    def end_all(self, code: Code, begun_s: float, num: int) -> None:
        """Counts the end of ``num`` requests that began at ``begun_s``."""
        counter = self._by_code.get(code) or self._counter(code)
        counter.add(num)
        self._latency.observe_all(self._now() - begun_s, num)

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
