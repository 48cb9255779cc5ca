"""How far the inputs of requests are from those that a version was made for.

For live requests, every ten seconds the next ten requests of each model are looked at whose
version brings the figures of its inputs. Only for these is a request decoded a second time,
on a thread of its own; between them, requests take the way that they take without. Figures
are told with the first request of a version, and then once a round.
"""

from __future__ import annotations

import logging
import os
import random
import struct
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tfs.codec.example import tensors_of_examples
from tfs.codec.example_input import read_example_request
from tfs.codec.predict_request import read_predict_request
from tfs.core import stat_names
from tfs.core.clock import Clock
from tfs.core.dtype import STRING
from tfs.core.errors import NotFound, ServingError
from tfs.core.executor import Executor
from tfs.core.loop.pacing import yield_to_requests
from tfs.core.loop.serving_loop import LoopEntry
from tfs.core.servable import Servable, Tensors
from tfs.core.servable_id import ServableId
from tfs.core.signature import Signature
from tfs.core.stats import HistogramSnapshot, Labels, Stats
from tfs.core.tensor_view import TensorView
from tfs.core.version.input_statistics import (
    MIN_VALUES,
    STATISTICS,
    InputStatistics,
    Skew,
    Value,
    read_statistics,
    skew,
)
from tfs.handlers.limits.answered_request import (
    MULTI_INFERENCE,
    PREDICT,
    AnsweredRequest,
)
from tfs.proto.tfs.v1.model_config_pb2 import Skew as SkewLimits
from tfs.proto.tfs.v1.model_config_pb2 import Validation

log = logging.getLogger(__name__)

FIGURES: Final = ("drift", "out_of_range", "missing")
"""What is measured of each input, and has a limit."""

# More values of an input say nothing new, and take seconds to sort.
_MAX_VALUES: Final = 100_000


class LiveInputs:
    """A sample of the values of each input of some requests. For one thread.

    Args:
        max_values: How many values of an input are kept, the newest.
        max_per_tensor: How many of one tensor, picked at random.

    """

    def __init__(
        self, max_values: int = _MAX_VALUES, max_per_tensor: int = _MAX_VALUES
    ) -> None:
        self._max_values = max_values
        self._max_per_tensor = max_per_tensor
        self._draw = random.Random(0)
        self._values: dict[str, deque[Value]] = {}

    def pick(self, tensors: Tensors) -> dict[str, list[Value]]:
        """Returns values of a request's inputs, but for bfloat16 and complex numbers."""
        found: dict[str, list[Value]] = {}
        for name, tensor in tensors.items():
            picked: Sequence[int] = range(tensor.num_elements)
            if len(picked) > self._max_per_tensor:
                picked = self._draw.sample(picked, self._max_per_tensor)
            found[name] = _values_at(tensor, picked)
        return found

    def extend(self, values: Mapping[str, Sequence[Value]]) -> None:
        """Adds values by input."""
        for name, each in values.items():
            fresh: deque[Value] = deque(maxlen=self._max_values)
            self._values.setdefault(name, fresh).extend(each)

    def values(self) -> dict[str, list[Value]]:
        """Returns a copy of what is kept, by input."""
        return {name: list(each) for name, each in self._values.items()}


def _values_at(tensor: TensorView, picked: Sequence[int]) -> list[Value]:
    if tensor.dtype is STRING:
        return [tensor.strings[each].decode(errors="replace") for each in picked]
    if not tensor.dtype.code:
        return []
    one, buffer = struct.Struct(f"<{tensor.dtype.code}"), tensor.buffer
    return [one.unpack_from(buffer, each * one.size)[0] for each in picked]


def measured(
    recorded: Mapping[str, InputStatistics], values: Mapping[str, Sequence[Value]]
) -> Mapping[str, Skew]:
    """Compares live values with the recorded ones, by input; gives way to requests."""
    found: dict[str, Skew] = {}
    for name in sorted(recorded):
        yield_to_requests()
        live = values.get(name, ())
        if len(live) >= MIN_VALUES:
            found[name] = skew(recorded[name], live)
    return found


def judged(by_input: Mapping[str, Skew], limits: SkewLimits) -> tuple[str, str]:
    """Returns what was measured in words, and which limits it exceeds; "" is none."""
    told: list[str] = []
    over: list[str] = []
    for name, found in by_input.items():
        for figure in FIGURES:
            value: float = getattr(found, figure)
            told.append(f"{name} {figure} {value:.4g}")
            limit: float = getattr(limits, f"max_{figure}")
            if limits.HasField(f"max_{figure}") and value > limit:
                over.append(f"{told[-1]} > {limit:.4g}")
    figures = ", ".join(told) or f"fewer than {MIN_VALUES} values of each input"
    return f"skew: {figures}", f"skew: {', '.join(over)}" if over else ""


_ROUND_S: Final = 10.0
_NUM_REQUESTS: Final = 10
_MAX_REQUEST_BYTES: Final = 4 << 20
_MAX_INPUTS: Final = 16
_MAX_LIVE_VALUES: Final = 1000  # about 32 KB an input
_MAX_PER_TENSOR: Final = 250


@dataclass(slots=True)
class _Watch:
    name: str
    signatures: Mapping[str, Signature]
    recorded: Mapping[str, InputStatistics]
    inputs: LiveInputs = field(
        default_factory=lambda: LiveInputs(_MAX_LIVE_VALUES, _MAX_PER_TENSOR)
    )
    has_news: bool = False  # since it was measured
    skew: Mapping[str, Skew] | None = None


class LiveSkew:
    """Samples what requests bring, as a log of theirs and a source of stats. Thread-safe.

    Args:
        settings_of: Returns what a model's config says of validation.
        executor: Decodes what is sampled, and gives way to requests.
        loop: The way onto the serving loop.
        clock: Tells the time.
        stats: Reads the figures.
        on_change: Called on the loop with the models for which ``wants`` has changed.

    """

    def __init__(
        self,
        settings_of: Callable[[str], Validation | None],
        executor: Executor,
        loop: LoopEntry,
        clock: Clock,
        stats: Stats,
        on_change: Callable[[Collection[str]], None],
    ) -> None:
        self._settings_of = settings_of
        self._executor = executor
        self._loop = loop
        self._clock = clock
        self._on_change = on_change
        # Guards _watches, what they hold, and _is_timed; leaf lock.
        self._lock = threading.Lock()
        self._watches: dict[ServableId, _Watch] = {}
        self._is_timed = False
        # How many requests of each model are still wanted; replaced on the loop, and
        # taken from without a lock.
        self._wanted: Mapping[str, deque[None]] = {}
        # The models of which a request waits for its decoding, or is decoded.
        self._decoding: dict[str, object] = {}
        stats.add_source(self)

    def note(self, servable: Servable, path: str) -> None:
        """Watches a loaded version, if figures are recorded with it or compared later.

        Blocks on the disk. What is recorded does no harm if it cannot be read: nothing is
        compared then.
        """
        name = servable.id.name
        settings, limits = self._settings_of(name), self._limits(name)
        where = limits.statistics or os.path.join(path, STATISTICS)
        recorded: Mapping[str, InputStatistics] = {}
        try:
            recorded = read_statistics(where)
        except NotFound:
            if settings is None or not settings.HasField("skew"):
                return
        except ServingError as error:
            log.warning("event=no_skew servable=%s why=%s", servable.id.slashed, error)
        watch = _Watch(name, servable.signatures, recorded)
        with self._lock:
            self._watches[servable.id] = watch
            is_timed, self._is_timed = self._is_timed, True
        if not is_timed:
            self._loop.post(self._begin_round)

    def forget(self, servable_id: ServableId) -> None:
        """Forgets a version that is gone; one that was never noted, too."""
        with self._lock:
            self._watches.pop(servable_id, None)

    def wants(self, name: str) -> bool:
        """Returns whether a model's requests should be logged here, now. On the loop."""
        return bool(self._wanted.get(name))

    def skew(self, servable_id: ServableId) -> tuple[str, str] | None:
        """Returns what :func:`judged` says of a version's inputs, if that is known."""
        with self._lock:
            watch = self._watches.get(servable_id)
            found = None if watch is None else watch.skew
        return None if found is None else judged(found, self._limits(servable_id.name))

    def values(self, servable_id: ServableId) -> Mapping[str, Sequence[Value]]:
        """Returns what requests to a version brought of late, by input."""
        with self._lock:
            watch = self._watches.get(servable_id)
            return {} if watch is None else watch.inputs.values()

    def log(self, request: AnsweredRequest) -> None:
        """Takes a request, if any is wanted still; see :data:`.RequestLog`.

        One of a model at a time, so that few copies wait where decoding is slow.
        """
        model = request.model
        wanted, mine = self._wanted.get(model), object()
        if wanted is None or self._decoding.setdefault(model, mine) is not mine:
            return
        is_taken = False
        try:
            if not wanted:
                return
            wanted.pop()
            if not wanted:
                self._loop.post(partial(self._on_change, (model,)))
            if (
                request.method != MULTI_INFERENCE
                and request.num_bytes <= _MAX_REQUEST_BYTES
            ):
                servable_id = ServableId(model, request.version)
                copy = bytes(request.record()[0])
                take = partial(
                    self._take, servable_id, request.method, request.signature, copy
                )
                is_taken = self._submit(take)
        finally:
            if not is_taken:
                self._decoding.pop(model, None)

    def counters(self) -> Iterable[tuple[str, Labels, float]]:
        """Returns the figures of each input, as a source of stats."""
        with self._lock:
            known = [(each, watch.skew) for each, watch in self._watches.items()]
        for servable_id, found in known:
            of = ("model", servable_id.name), ("version", str(servable_id.version))
            for name, figures in (found or {}).items():
                for figure in FIGURES:
                    labels = ("figure", figure), ("input", name), *of
                    yield stat_names.INPUT_SKEW, labels, getattr(figures, figure)

    def histograms(self) -> Iterable[tuple[str, Labels, HistogramSnapshot]]:
        """Returns none."""
        return ()

    def _begin_round(self) -> None:
        with self._lock:
            watches = list(self._watches.values())
            self._is_timed = bool(watches)
        names = {each.name for each in watches}
        changed = names.union(self._wanted)
        self._wanted = {name: deque((None,) * _NUM_REQUESTS) for name in names}
        self._on_change(changed)
        for watch in watches:
            if watch.has_news:
                self._submit(partial(self._measure, watch))
        if names:
            self._loop.post_at(self._clock.now() + _ROUND_S, self._begin_round)

    def _limits(self, name: str) -> SkewLimits:
        settings = self._settings_of(name)
        return SkewLimits() if settings is None else settings.skew

    def _submit(self, fn: Callable[[], object]) -> bool:
        try:
            self._executor.submit(fn)
        except RuntimeError:
            return False  # it is closed
        return True

    def _take(
        self, servable_id: ServableId, method: str, signature: str, request: bytes
    ) -> None:
        try:
            with self._lock:
                watch = self._watches.get(servable_id)
            if watch is None:
                return
            tensors = _tensors(method, request, watch.signatures[signature])
            picked = watch.inputs.pick(tensors)
            with self._lock:  # the loop waits for it
                watch.inputs.extend(picked)
                watch.has_news = True
            if watch.skew is None:
                self._measure(watch)
        finally:
            self._decoding.pop(servable_id.name, None)

    def _measure(self, watch: _Watch) -> None:
        with self._lock:
            watch.has_news = False
            values = watch.inputs.values()
        found = measured(watch.recorded, values)
        with self._lock:
            watch.skew = found


def _tensors(method: str, request: bytes, signature: Signature) -> Tensors:
    """Returns the inputs of a request that was answered, as many as are watched."""
    if method == PREDICT:
        found: Tensors = read_predict_request(request).inputs
    else:
        found = tensors_of_examples(read_example_request(request).input, signature)
    return {name: found[name] for name in sorted(found)[:_MAX_INPUTS]}
