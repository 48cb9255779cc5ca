"""Counts requests under TensorFlow Serving's names, so that its dashboards keep working.

The counters of a version disappear with it. These must not: Prometheus takes a number
that falls for a restart, and would count the rest as new. So when a version is gone,
its last seen numbers are kept for as long as its model is served. What it counted after
the last scrape is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from tfs.core import stat_names
from tfs.core.loop.pacing import yield_to_requests
from tfs.core.stats import HistogramSnapshot, Labels, Stats
from tfs.server.metrics.exposition import Exposition

REQUEST_COUNT: Final = ":tensorflow:serving:request_count"
REQUEST_LATENCY: Final = ":tensorflow:serving:request_latency"

_COUNTED: Final = frozenset({"Predict", "Classify", "Regress"})
_TO_MICROS: Final = 1e6


class UpstreamSeries:
    """Sums over versions and signatures that never fall. Confined to one thread at a time.

    (TensorFlow Serving: servables/tensorflow/util.cc, RecordModelRequestCount and
    RecordRequestLatency.)
    """

    def __init__(self) -> None:
        self._counts: dict[Labels, _Kept] = {}
        self._latencies: dict[Labels, _Kept] = {}

    def add_to(self, page: Exposition, stats: Stats, models: Collection[str]) -> None:
        """Adds both families.

        Args:
            page: The page to add to.
            stats: The counters of the server.
            models: The configured models; numbers of others are forgotten.

        """
        for name, labels, value in stats.counters():
            if name == stat_names.REQUESTS:
                self._counts.setdefault(labels, _Kept()).take((value,))
        for name, labels, found in stats.histograms():
            if name == stat_names.REQUEST_LATENCY_S:
                figures = (*found.counts, found.total)
                self._latencies.setdefault(labels, _Kept()).take(figures)
        self._counts = _of_models(self._counts, models)
        self._latencies = _of_models(self._latencies, models)
        for key, (value,) in _summed(self._counts, _count_labels).items():
            page.add(REQUEST_COUNT, "counter", key, value)
        for key, sums in _summed(self._latencies, _latency_labels).items():
            counts = tuple(map(int, sums[:-1]))
            snapshot = HistogramSnapshot(stat_names.LATENCY_BOUNDS_S, counts, sums[-1])
            page.add_histogram(REQUEST_LATENCY, key, snapshot, _TO_MICROS)


class _Kept:
    """Numbers that only grow, even if their counters start again."""

    __slots__ = ("_before", "_last")

    def __init__(self) -> None:
        self._before: tuple[float, ...] = ()
        self._last: tuple[float, ...] = ()

    def take(self, figures: tuple[float, ...]) -> None:
        """Takes the present values of the counters."""
        if any(now < then for now, then in zip(figures, self._last, strict=False)):
            self._before = self.sums  # the version was unloaded and loaded again
        self._last = figures

    @property
    def sums(self) -> tuple[float, ...]:
        """The sums of everything that was counted until the last look."""
        if not self._before:
            return self._last
        return tuple(map(sum, zip(self._before, self._last, strict=True)))


def _of_models(
    kept: Mapping[Labels, _Kept], models: Collection[str]
) -> dict[Labels, _Kept]:
    return {
        labels: each for labels, each in kept.items() if dict(labels)["model"] in models
    }


def _summed(
    kept: Mapping[Labels, _Kept], key_of: Callable[[Mapping[str, str]], Labels]
) -> dict[Labels, tuple[float, ...]]:
    sums: dict[Labels, tuple[float, ...]] = {}
    for labels, each in kept.items():
        known = dict(labels)
        if known["method"] not in _COUNTED:
            continue
        yield_to_requests()
        key, figures = key_of(known), each.sums
        if key in sums:
            figures = tuple(map(sum, zip(sums[key], figures, strict=True)))
        sums[key] = figures
    return sums


def _count_labels(known: Mapping[str, str]) -> Labels:
    return ("model_name", known["model"]), ("status", known["status"])


def _latency_labels(known: Mapping[str, str]) -> Labels:
    return (
        ("model_name", known["model"]),
        ("API", known["method"]),
        ("entrypoint", "GRPC"),
    )
