"""The page of a server's metrics: its counters and the states of its models, for Prometheus."""

from __future__ import annotations

import functools
import itertools
import math
import os
import platform
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from tfs.core import stat_names
from tfs.core.errors import Code, InvalidArgument
from tfs.core.loop.pacing import yield_to_requests
from tfs.core.servable_state import ManagerState, ServableState
from tfs.core.stat_names import stat_meanings
from tfs.core.stats import HistogramSnapshot, Labels, Stats
from tfs.handlers.limits.request_stats import RequestFigures
from tfs.proto._text_form import ParseError, read_text
from tfs.proto.tensorflow_serving.config import monitoring_config_pb2
from tfs.server.config.config_file import read_config_file
from tfs.server.system.processes import tree_resident_bytes
from tfs.server.system.versions import distribution_version

Kind = Literal["counter", "gauge", "histogram"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Exposition:
    """A page that is being written in Prometheus' text format. Confined to one thread.

    Names are given as they appear in the text. Families come in the order of their first
    sample, and the samples of each stay together, as the format requires.

    Args:
        help_texts: What families mean, by name; one without a text gets no help.

    """

    def __init__(self, help_texts: Mapping[str, str] = MappingProxyType({})) -> None:
        self._help_texts = help_texts
        self._families: dict[str, tuple[Kind, list[str]]] = {}

    def add(
        self, name: str, labels: Labels, value: float, kind: Kind = "gauge"
    ) -> None:
        """Adds one sample."""
        self._lines(name, kind).append(f"{name}{_braced(labels)} {_number(value)}")

    def add_histogram(
        self, name: str, labels: Labels, found: HistogramSnapshot, scale: float = 1.0
    ) -> None:
        """Adds a histogram; ``scale`` brings its values to the unit of the name."""
        lines = self._lines(name, "histogram")
        braced = _braced(labels)
        begin = f"{name}_bucket{braced[:-1]}," if braced else f"{name}_bucket{{"
        seen = 0
        for limit, count in zip(
            _limits(found.bounds, scale), found.counts, strict=True
        ):
            seen += count
            lines.append(f"{begin}{limit} {seen}")
        lines.append(f"{name}_sum{braced} {_number(found.total * scale)}")
        lines.append(f"{name}_count{braced} {seen}")

    def lines(self) -> Iterator[str]:
        """Yields the lines of the page, without line ends."""
        for name, (kind, lines) in self._families.items():
            help_text = self._help_texts.get(name)
            if help_text:
                yield f"# HELP {name} {help_text.translate(_HELP_ESCAPES)}"
            yield f"# TYPE {name} {kind}"
            yield from lines

    def _lines(self, name: str, kind: Kind) -> list[str]:
        return self._families.setdefault(name, (kind, []))[1]


@functools.lru_cache(maxsize=256)
def _limits(bounds: tuple[float, ...], scale: float) -> tuple[str, ...]:
    return tuple(f'le="{_number(bound * scale)}"}}' for bound in (*bounds, math.inf))


@functools.lru_cache(maxsize=4096)
def _braced(labels: Labels) -> str:
    if not labels:
        return ""
    inner = ",".join(f'{key}="{value.translate(_ESCAPES)}"' for key, value in labels)
    return f"{{{inner}}}"


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if math.isnan(value):
        return "NaN"
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return repr(round(value, 9))


REQUEST_COUNT: Final = ":tensorflow:serving:request_count"
REQUEST_LATENCY: Final = ":tensorflow:serving:request_latency"

_COUNTED: Final = ("Predict", "Classify", "Regress")
_TO_MICROS: Final = 1e6
_PREFIX: Final = "tfs_"
_WAITING: Final = (stat_names.BATCH_WAITING_TASKS, stat_names.SLOW_DECODES_QUEUED)
_PIECE_LINES: Final = 2048  # about a millisecond
BUILD_INFO: Final = "tfs_build_info"


Totals = Callable[[], Mapping[str, Mapping[str, RequestFigures]]]
"""Returns what was counted, by model and method."""


class OtherFamily(NamedTuple):
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
    OtherFamily("tfs_model_primary_version", ("model",), "which version answers"),
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
        "latencies of requests in microseconds, likewise; `entrypoint` is always GRPC",
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
    """Writes the page anew for every reader. Thread-safe.

    Args:
        stats: The counters of the server.
        models: Reads one configured model after the other, each with its name.
        is_ready: Whether requests should be sent here.
        started_s: When the server started, in seconds since the epoch.
        totals: Returns what was counted by model and method, of gone versions, too.

    """

    def __init__(
        self,
        stats: Stats,
        models: Callable[[], Iterable[tuple[str, ServedModel]]],
        is_ready: Callable[[], bool],
        started_s: float,
        totals: Totals,
    ) -> None:
        self._stats = stats
        self._models = models
        self._is_ready = is_ready
        self._started_s = started_s
        self._totals = totals

    def parts(self) -> list[bytes]:
        """Returns the page in pieces; gives way to requests while it writes them."""
        page = Exposition(_help_texts())
        models: dict[str, ServedModel] = {}
        for name, model in self._models():
            yield_to_requests()
            models[name] = model
        self._add_upstream(page, models)
        num_waiting = 0.0
        for name, labels, value in self._stats.counters():
            yield_to_requests()
            kind = kind_of(name)
            if name in _WAITING:
                num_waiting += value
            page.add(exported_name(name, kind), labels, value, kind)
        for name, labels, found in self._stats.histograms():
            yield_to_requests()  # the states of a thousand models take a tenth of a second
            page.add_histogram(exported_name(name, "histogram"), labels, found)
        waiting = exported_name(stat_names.REQUESTS_WAITING, "gauge")
        page.add(waiting, (), num_waiting)
        self._add_models(page, models)
        yield_to_requests()
        page.add(BUILD_INFO, _build_labels(), 1)
        page.add("tfs_ready", (), self._is_ready())
        page.add("process_start_time_seconds", (), self._started_s)
        held_bytes = tree_resident_bytes(os.getpid())
        page.add("process_resident_memory_bytes", (), held_bytes)
        parts = []
        lines = page.lines()
        while piece := list(itertools.islice(lines, _PIECE_LINES)):
            yield_to_requests()
            parts.append("\n".join((*piece, "")).encode())
        return parts

    def _add_upstream(self, page: Exposition, models: Collection[str]) -> None:
        """Adds what TensorFlow Serving counts, under its names.

        Sums over versions and signatures, which never fall while the model is configured.
        (servables/tensorflow/util.cc, RecordModelRequestCount and RecordRequestLatency.)
        """
        for name, by_method in self._totals().items():
            if name not in models:
                continue
            yield_to_requests()
            num_by_code: Counter[Code] = Counter()
            for method in _COUNTED:
                figures = by_method.get(method)
                if figures is None:
                    continue
                num_by_code.update(figures.num_by_code)
                labels = ("model_name", name), ("API", method), ("entrypoint", "GRPC")
                page.add_histogram(
                    REQUEST_LATENCY, labels, figures.latency_s, _TO_MICROS
                )
            for code, num in num_by_code.items():
                status = ("model_name", name), ("status", code.name)
                page.add(REQUEST_COUNT, status, num, "counter")

    def _add_models(self, page: Exposition, models: Mapping[str, ServedModel]) -> None:
        for name, model in sorted(models.items()):
            yield_to_requests()
            labels = (("model", name),)
            page.add("tfs_model_available", labels, model.primary is not None)
            if model.primary is not None:
                page.add("tfs_model_primary_version", labels, model.primary)
            for state in model.states:
                version = ("version", str(state.id.version))
                word = ("state", _state_word(state, model.failed))
                page.add("tfs_model_version_state", (*labels, version, word), 1)


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


DEFAULT_PATH: Final = "/monitoring/prometheus/metrics"


def read_monitoring_config(path: str) -> str:
    """Returns the path of the page that it enables; "" if it enables none.

    Without a file that is TensorFlow Serving's.

    Raises:
        FailedPrecondition: It cannot be read.
        InvalidArgument: It is not such a text, or its path does not begin with "/".

    """
    if not path:
        return DEFAULT_PATH
    config = monitoring_config_pb2.MonitoringConfig()
    try:
        read_text(read_config_file(path, "MonitoringConfig"), config)
    except ParseError as error:
        raise InvalidArgument(f"--monitoring_config_file={path}: {error}") from error
    if not config.prometheus_config.enable:
        return ""
    page = config.prometheus_config.path or DEFAULT_PATH
    if not page.startswith("/"):
        raise InvalidArgument(
            f"--monitoring_config_file={path}: prometheus_config.path must begin with "
            f"a slash: {page!r}"
        )
    return page
