"""Plain counters and fixed-bucket histograms, without locks on the request path.

Every thread adds to a cell of its own; readers sum the cells. A sum read while
threads add may lag by what is in flight, never goes back, and loses nothing.
Exporters come later and only read. Names and labels: ``tfs/core/stat_names.py``.
"""

from __future__ import annotations

import functools
import operator
import threading
import weakref
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import get_ident
from typing import Protocol

Labels = tuple[tuple[str, str], ...]


class Counter:
    """A number that only grows. Thread-safe."""

    __slots__ = ("_cells",)

    def __init__(self) -> None:
        self._cells: dict[int, float] = {}

    def add(self, amount: float = 1) -> None:
        """Adds ``amount`` >= 0."""
        cells = self._cells
        ident = get_ident()
        try:
            cells[ident] += amount
        except KeyError:
            cells[ident] = amount

    @property
    def value(self) -> float:
        """The sum over all threads."""
        return sum(list(self._cells.values()))


class HistogramFields(Protocol):
    """A histogram, or a message of one; see :class:`HistogramSnapshot`."""

    @property
    def bounds(self) -> Iterable[float]: ...

    @property
    def counts(self) -> Iterable[int]: ...

    @property
    def total(self) -> float: ...


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """A histogram at one moment.

    Attributes:
        bounds: Upper bounds of the buckets, ascending, inclusive; one bucket more
            holds what is above the last.
        counts: Observations per bucket.
        total: Sum of all observed values.

    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def num(self) -> int:
        """How many values were observed."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Their mean; 0 without any."""
        return self.total / self.num if self.num else 0.0

    @classmethod
    def merged(cls, histograms: Iterable[HistogramFields]) -> HistogramSnapshot:
        """Returns the sum of those with the same bounds; an empty one of none."""
        found = [
            cls(tuple(each.bounds), tuple(each.counts), each.total)
            for each in histograms
        ]
        return functools.reduce(operator.add, found) if found else cls((), (), 0.0)

    def __add__(self, other: HistogramSnapshot) -> HistogramSnapshot:
        """Returns the sum of two with the same bounds."""
        counts = tuple(map(sum, zip(self.counts, other.counts, strict=True)))
        return HistogramSnapshot(self.bounds, counts, self.total + other.total)

    def quantile(self, share: float) -> float:
        """Returns the upper bound of the bucket the quantile falls into, 0 if empty."""
        wanted = share * self.num
        seen = 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            seen += count
            if seen >= wanted and seen:
                return bound
        return self.bounds[-1] if seen < self.num else 0.0


class Histogram:
    """Counts values by bucket. Thread-safe."""

    __slots__ = ("_cells", "bounds")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        if list(self.bounds) != sorted(set(self.bounds)) or not self.bounds:
            raise ValueError("histogram bounds must ascend")
        self._cells: dict[int, list[float]] = {}

    def observe(self, value: float, num: int = 1) -> None:
        """Counts ``value`` ``num`` times."""
        cell = self._cells.get(get_ident())
        if cell is None:
            cell = self._cells[get_ident()] = [0.0] * (len(self.bounds) + 2)
        cell[bisect_left(self.bounds, value)] += num
        cell[-1] += num * value

    def snapshot(self) -> HistogramSnapshot:
        """Returns the sum over all threads."""
        width = len(self.bounds) + 1
        counts = [0] * width
        total = 0.0
        for cell in list(self._cells.values()):
            for index in range(width):
                counts[index] += int(cell[index])
            total += cell[-1]
        return HistogramSnapshot(self.bounds, tuple(counts), total)


def exponential_bounds(first: float, factor: float, num: int) -> tuple[float, ...]:
    """Returns ``num`` bounds: first, first x factor, first x factor^2, ..."""
    return tuple(first * factor**index for index in range(num))


class StatSource(Protocol):
    """Numbers kept elsewhere, by somebody who counts more cheaply than a counter does.

    Implementors promise that both may be called from any thread, at any time.
    """

    def counters(self) -> Iterable[tuple[str, Labels, float]]:
        """Returns name, labels and value of every number."""
        ...

    def histograms(self) -> Iterable[tuple[str, Labels, HistogramSnapshot]]:
        """Returns name, labels and contents of every histogram."""
        ...


class Stats:
    """The server's counters and histograms by name and labels. Thread-safe.

    Look a stat up once and keep it: the look-up takes a lock, adding does not.
    """

    def __init__(self) -> None:
        # Guards the four dicts and the set; leaf lock.
        self._lock = threading.Lock()
        self._counters: dict[tuple[str, Labels], Counter] = {}
        self._histograms: dict[tuple[str, Labels], Histogram] = {}
        self._gauges: dict[tuple[str, Labels], Callable[[], float]] = {}
        self._removed: dict[str, float] = {}  # what counters held, by name
        self._sources: weakref.WeakSet[StatSource] = weakref.WeakSet()

    def counter(self, name: str, **labels: str) -> Counter:
        """Returns the counter, made at its first use."""
        with self._lock:
            return self._counters.setdefault((name, _labels(labels)), Counter())

    def histogram(self, name: str, bounds: Sequence[float], **labels: str) -> Histogram:
        """Returns the histogram, made with ``bounds`` at its first use."""
        key = (name, _labels(labels))
        with self._lock:
            found = self._histograms.get(key)
            if found is None:
                found = self._histograms[key] = Histogram(bounds)
            return found

    def gauge(self, name: str, read: Callable[[], float], **labels: str) -> None:
        """Registers a value that is read when asked for; replaces an equal one."""
        with self._lock:
            self._gauges[name, _labels(labels)] = read

    def add_source(self, source: StatSource) -> None:
        """Reads ``source`` too when asked, for as long as somebody else keeps it."""
        with self._lock:
            self._sources.add(source)

    def remove_source(self, source: StatSource) -> None:
        """Reads it no more; nothing happens if it is not there."""
        with self._lock:
            self._sources.discard(source)

    def forget(self, label: str, values: Collection[str]) -> None:
        """Drops every stat that has ``label`` with one of the values (models that are gone).

        All in one go: the stats of a thousand models are many. Sources stay: they go with
        whoever keeps them.
        """
        gone = {(label, value) for value in values}
        with self._lock:
            for table in (self._counters, self._histograms, self._gauges):
                for key in [k for k in table if not gone.isdisjoint(k[1])]:
                    self._remove_locked(key)

    def remove(self, name: str, **labels: str) -> None:
        """Drops the one stat of this name and exactly these labels, if there is one."""
        with self._lock:
            self._remove_locked((name, _labels(labels)))

    def sums(self) -> dict[str, float]:
        """Returns every counter and gauge by name, summed over its labels.

        Of counters what is gone counts as well: the sums never go back.
        """
        with self._lock:
            sums = dict(self._removed)
        for name, _, value in self.counters():
            sums[name] = sums.get(name, 0.0) + value
        return sums

    def _remove_locked(self, key: tuple[str, Labels]) -> None:
        counter = self._counters.pop(key, None)
        if counter is not None:
            self._removed[key[0]] = self._removed.get(key[0], 0.0) + counter.value
        self._histograms.pop(key, None)
        self._gauges.pop(key, None)

    def counters(self) -> Iterator[tuple[str, Labels, float]]:
        """Yields name, labels and value of every counter and gauge."""
        with self._lock:
            counters = list(self._counters.items())
            gauges = list(self._gauges.items())
            sources = list(self._sources)
        for (name, labels), counter in counters:
            yield name, labels, counter.value
        for (name, labels), read in gauges:
            yield name, labels, read()
        for source in sources:
            yield from source.counters()

    def histograms(self) -> Iterator[tuple[str, Labels, HistogramSnapshot]]:
        """Yields name, labels and contents of every histogram."""
        with self._lock:
            histograms = list(self._histograms.items())
            sources = list(self._sources)
        for (name, labels), histogram in histograms:
            yield name, labels, histogram.snapshot()
        for source in sources:
            yield from source.histograms()


def _labels(labels: dict[str, str]) -> Labels:
    return tuple(sorted(labels.items()))
