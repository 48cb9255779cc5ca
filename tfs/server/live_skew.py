"""Compares what requests bring with what the version that answers was made for.

Every ten seconds the next ten requests of each model are looked at whose version brings the
figures of its inputs. Only for these is a request decoded a second time, on a thread for
what is slow; between them, requests take the way that they take without.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tfs.codec.example import tensors_of_examples
from tfs.codec.example_input import read_example_request
from tfs.codec.predict_request import read_predict_request
from tfs.core import stat_names
from tfs.core.clock import Clock
from tfs.core.errors import NotFound, ServingError
from tfs.core.executor import Executor
from tfs.core.loop.serving_loop import LoopEntry
from tfs.core.servable import Servable, Tensors
from tfs.core.servable_id import ServableId
from tfs.core.signature import Signature
from tfs.core.stats import HistogramSnapshot, Labels, Stats
from tfs.core.version.input_statistics import (
    STATISTICS,
    InputStatistics,
    Value,
    read_statistics,
)
from tfs.handlers.limits.model_gate import MULTI_INFERENCE, PREDICT, Record
from tfs.server.input_skew import InputSkew, LiveInputs
from tfs.server.model_settings import SkewSettings, ValidationSettings

log = logging.getLogger(__name__)

_ROUND_S: Final = 10.0
_NUM_REQUESTS: Final = 10
_MAX_REQUEST_BYTES: Final = 4 << 20
_MAX_INPUTS: Final = 16
_MAX_VALUES: Final = 1000  # about 32 KB an input
_MAX_PER_TENSOR: Final = 250


@dataclass(slots=True)
class _Watch:
    signatures: Mapping[str, Signature]
    recorded: Mapping[str, InputStatistics]
    limits: SkewSettings
    inputs: LiveInputs = field(
        default_factory=lambda: LiveInputs(_MAX_VALUES, _MAX_PER_TENSOR)
    )
    skew: InputSkew | None = None


class LiveSkew:
    """Samples what requests bring, as a log of theirs and a source of stats. Thread-safe.

    Args:
        settings_of: Returns what a model's config says of validation.
        executor: Decodes what is sampled.
        loop: The way onto the serving loop.
        clock: Tells the time.
        stats: Reads the figures.
        on_change: Called on the loop when ``models`` has changed.

    """

    def __init__(
        self,
        settings_of: Callable[[str], ValidationSettings | None],
        executor: Executor,
        loop: LoopEntry,
        clock: Clock,
        stats: Stats,
        on_change: Callable[[], None],
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
        stats.add_source(self)

    def note(self, servable: Servable, path: str) -> None:
        """Watches a loaded version, if figures are recorded with it or compared later.

        Blocks on the disk. What is recorded does no harm if it cannot be read: nothing is
        compared then.
        """
        settings = self._settings_of(servable.id.name)
        limits = settings.skew if settings else None
        where = (limits and limits.statistics) or os.path.join(path, STATISTICS)
        recorded: Mapping[str, InputStatistics] = {}
        try:
            recorded = read_statistics(where)
        except NotFound:
            if limits is None:
                return
        except ServingError as error:
            log.warning("event=no_skew servable=%s why=%s", servable.id.slashed, error)
        first = dict(sorted(recorded.items())[:_MAX_INPUTS])
        watch = _Watch(servable.signatures, first, limits or SkewSettings())
        with self._lock:
            self._watches[servable.id] = watch
            is_timed, self._is_timed = self._is_timed, True
        if not is_timed:
            self._loop.post(self._begin_round)

    def forget(self, servable_id: ServableId) -> None:
        """Forgets a version that is gone; one that was never noted, too."""
        with self._lock:
            self._watches.pop(servable_id, None)

    @property
    def models(self) -> Sequence[str]:
        """The models whose requests should be logged here, now. On the loop."""
        return [name for name, wanted in self._wanted.items() if wanted]

    def skew(self, servable_id: ServableId) -> InputSkew | None:
        """Returns how far a version's inputs are from the recorded ones, if it is known."""
        with self._lock:
            watch = self._watches.get(servable_id)
            return None if watch is None else watch.skew

    def values(self, servable_id: ServableId) -> Mapping[str, Sequence[Value]]:
        """Returns what requests to a version brought of late, by input."""
        with self._lock:
            watch = self._watches.get(servable_id)
            return {} if watch is None else watch.inputs.values()

    def log(
        self, method: str, model: str, version: int, signature: str, record: Record
    ) -> None:
        """Takes a request, if any is wanted still; see :class:`.RequestLog`."""
        wanted = self._wanted.get(model)
        if wanted is None:
            return
        try:
            wanted.pop()
        except IndexError:
            return
        if not wanted:
            self._loop.post(self._on_change)
        request, _ = record()
        if method == MULTI_INFERENCE or len(request) > _MAX_REQUEST_BYTES:
            return
        servable_id, copy = ServableId(model, version), bytes(request)
        with contextlib.suppress(RuntimeError):  # it is closed
            self._executor.submit(
                partial(self._take, servable_id, method, signature, copy)
            )

    def counters(self) -> Iterable[tuple[str, Labels, float]]:
        """Returns the figures of each input, as a source of stats."""
        with self._lock:
            known = [(each, watch.skew) for each, watch in self._watches.items()]
        for servable_id, found in known:
            for name, skew in (found.by_input if found else {}).items():
                for figure in ("drift", "out_of_range", "missing"):
                    labels = {
                        "figure": figure,
                        "input": name,
                        "model": servable_id.name,
                        "version": str(servable_id.version),
                    }
                    value: float = getattr(skew, figure)
                    yield stat_names.INPUT_SKEW, tuple(labels.items()), value

    def histograms(self) -> Iterable[tuple[str, Labels, HistogramSnapshot]]:
        """Returns none."""
        return ()

    def _begin_round(self) -> None:
        with self._lock:
            names = {each.name for each in self._watches}
            self._is_timed = bool(names)
        self._wanted = {name: deque((None,) * _NUM_REQUESTS) for name in names}
        self._on_change()
        if names:
            self._loop.post_at(self._clock.now() + _ROUND_S, self._begin_round)

    def _take(
        self, servable_id: ServableId, method: str, signature: str, request: bytes
    ) -> None:
        with self._lock:
            watch = self._watches.get(servable_id)
        if watch is None:
            return
        tensors = _tensors(method, request, watch.signatures[signature])
        with self._lock:
            watch.inputs.add(tensors)
            values = watch.inputs.values()
        watch.skew = InputSkew.measured(watch.limits, watch.recorded, values)


def _tensors(method: str, request: bytes, signature: Signature) -> Tensors:
    """Returns the inputs of a request that was answered, as many as are watched."""
    if method == PREDICT:
        found: Tensors = read_predict_request(request).inputs
    else:
        found = tensors_of_examples(read_example_request(request).input, signature)
    return {name: found[name] for name in sorted(found)[:_MAX_INPUTS]}
