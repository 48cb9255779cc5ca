"""The page of a server's metrics: its counters, and the states of its models."""

from __future__ import annotations

import functools
import itertools
import os
import platform
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tfs.core import stat_names
from tfs.core.loop.pacing import yield_to_requests
from tfs.core.servable_state import ManagerState, ServableState
from tfs.core.stat_meanings import stat_meanings
from tfs.core.stats import HistogramSnapshot, Labels, Stats
from tfs.server.metrics.exposition import Exposition, Kind
from tfs.server.system.processes import tree_resident_bytes
from tfs.server.system.versions import distribution_version

REQUEST_COUNT: Final = ":tensorflow:serving:request_count"
REQUEST_LATENCY: Final = ":tensorflow:serving:request_latency"

_COUNTED: Final = frozenset({"Predict", "Classify", "Regress"})
_TO_MICROS: Final = 1e6
_PREFIX: Final = "tfs_"
_WAITING: Final = (stat_names.BATCH_WAITING_TASKS, stat_names.SLOW_DECODES_QUEUED)
_PIECE_LINES: Final = 2048  # about a millisecond
BUILD_INFO: Final = "tfs_build_info"


@dataclass(frozen=True, slots=True)
class OtherFamily:
    """A family of samples that is not one of the server's stats. Immutable."""

    name: str
    labels: tuple[str, ...]
    meaning: str


OTHER_FAMILIES: Final = (
    OtherFamily(
        BUILD_INFO,
        ("version", "python", "torch"),
        "1, with what the server consists of",
    ),
    OtherFamily(
        "tfs_ready", (), "1 when requests should be sent here, as health tells"
    ),
    OtherFamily(
        "tfs_model_available",
        ("model",),
        "1 when a version answers requests that name none",
    ),
    OtherFamily("tfs_model_primary_version", ("model",), "that version"),
    OtherFamily(
        "tfs_model_version_state",
        ("model", "version", "state"),
        "1 for the state of each version: START, LOADING, AVAILABLE, UNLOADING, END, or "
        "FAILED if it is asked for and could not be loaded, or is quarantined",
    ),
    OtherFamily(
        "process_resident_memory_bytes", (), "memory of the server and its processes"
    ),
    OtherFamily("process_start_time_seconds", (), "when the server started"),
    OtherFamily(
        REQUEST_COUNT,
        ("model_name", "status"),
        "requests, under TensorFlow Serving's name: a sum over versions, which never falls",
    ),
    OtherFamily(
        REQUEST_LATENCY,
        ("model_name", "API", "entrypoint"),
        "their latencies in microseconds, likewise",
    ),
)
"""What the page has beside the stats, for its help and for docs/metrics.md."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One configured model. Immutable.

    Attributes:
        states: The states of its versions.
        primary: The version that answers requests which name none; None: none does.
        failed: The versions that are asked for and failed.

    """

    states: Sequence[ServableState]
    primary: int | None
    failed: Collection[int] = ()


class MetricsPage:
    """Writes the page anew for every reader. Thread-safe; writes one page at a time.

    Args:
        stats: The counters of the server.
        models: Reads the configured models, by name.
        is_ready: Whether requests should be sent here.
        started_s: When the server started, in seconds since the epoch.

    """

    def __init__(
        self,
        stats: Stats,
        models: Callable[[], Mapping[str, ServedModel]],
        is_ready: Callable[[], bool],
        started_s: float,
    ) -> None:
        self._stats = stats
        self._models = models
        self._is_ready = is_ready
        self._started_s = started_s
        # Guards the next field while a page is written; only readers of pages take it.
        # Leaf but for the lock of the stats.
        self._lock = threading.Lock()
        self._upstream = UpstreamSeries()

    def text(self) -> str:
        """Returns the page."""
        return b"".join(self.parts()).decode()

    def parts(self) -> list[bytes]:
        """Returns the page in pieces; gives way to requests while it writes them."""
        page = Exposition(_help_texts())
        models = self._models()
        with self._lock:
            self._upstream.add_to(page, self._stats, models)
        num_waiting = 0.0
        for name, labels, value in self._stats.counters():
            yield_to_requests()
            kind = kind_of(name)
            if name in _WAITING:
                num_waiting += value
            page.add(exported_name(name, kind), kind, labels, value)
        for name, labels, found in self._stats.histograms():
            yield_to_requests()  # the states of a thousand models take a tenth of a second
            page.add_histogram(exported_name(name, "histogram"), labels, found)
        waiting = exported_name(stat_names.REQUESTS_WAITING, "gauge")
        page.add(waiting, "gauge", (), num_waiting)
        self._add_models(page, models)
        page.add(BUILD_INFO, "gauge", _build_labels(), 1)
        page.add("tfs_ready", "gauge", (), float(self._is_ready()))
        page.add("process_start_time_seconds", "gauge", (), self._started_s)
        page.add(
            "process_resident_memory_bytes",
            "gauge",
            (),
            tree_resident_bytes(os.getpid()),
        )
        parts = []
        lines = page.lines()
        while piece := list(itertools.islice(lines, _PIECE_LINES)):
            yield_to_requests()
            parts.append("\n".join((*piece, "")).encode())
        return parts

    def _add_models(self, page: Exposition, models: Mapping[str, ServedModel]) -> None:
        for name, model in sorted(models.items()):
            yield_to_requests()
            labels = (("model", name),)
            page.add(
                "tfs_model_available", "gauge", labels, float(model.primary is not None)
            )
            if model.primary is not None:
                page.add("tfs_model_primary_version", "gauge", labels, model.primary)
            for state in model.states:
                page.add(
                    "tfs_model_version_state",
                    "gauge",
                    (
                        *labels,
                        ("version", str(state.id.version)),
                        ("state", _state_word(state, model.failed)),
                    ),
                    1,
                )


@functools.cache
def _help_texts() -> Mapping[str, str]:
    """Returns what each family means, by its name on the page."""
    texts = {each.name: each.meaning for each in OTHER_FAMILIES}
    for name, told in stat_meanings().items():
        kind: Kind = "histogram" if told.kind == "Histogram" else kind_of(name)
        texts[exported_name(name, kind)] = told.text
    return texts


def _state_word(state: ServableState, failed: Collection[int]) -> str:
    """Returns the name of a state, or FAILED for a fault that somebody should mend.

    A version that has ended is remembered with its error. If it is not asked for any
    more (another took its place, its load was called off), an alert about it would
    never end.
    """
    is_past = state.manager_state is ManagerState.END and state.id.version not in failed
    if state.error is None or is_past:
        return state.manager_state.name
    return "FAILED"


@functools.cache
def _build_labels() -> Labels:
    return (
        ("version", distribution_version("tfs")),
        ("python", platform.python_version()),
        ("torch", distribution_version("torch")),
    )


def kind_of(name: str) -> Kind:
    """Returns what Prometheus is told that a stat is, unless it is a histogram."""
    return "counter" if name in stat_names.ONLY_GROW else "gauge"


def exported_name(name: str, kind: Kind) -> str:
    """Returns a stat's name, with units and totals as is usual for Prometheus."""
    if name.endswith("_s"):
        name = f"{name}econds"
    return f"{_PREFIX}{name}_total" if kind == "counter" else f"{_PREFIX}{name}"


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
