"""How much work the server takes at a time, and how each request ended.

A request enters before it is decoded, so that a full server refuses for next to
nothing, and leaves when nothing works on it any more: a call that was cancelled while
its batch runs still takes its place. Both happen on the path of every request, so a
limit is a deque of tokens (taking and giving back one is a single atomic call, from any
thread, without a lock) and counters are looked up once and kept.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

from tfs.core import stat_names
from tfs.core.call import Call
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import (
    Code,
    ServingError,
    Unavailable,
    forget_frames,
    serving_error,
)
from tfs.core.stats import Stats
from tfs.handlers.request_stats import RequestFigures, RequestStats

log = logging.getLogger(__name__)

RETRY_AFTER_S: Final = 0.05
"""The hint that goes with a refusal: about what a queue of small requests takes."""

PREDICT: Final = "Predict"
CLASSIFY: Final = "Classify"
REGRESS: Final = "Regress"
MULTI_INFERENCE: Final = "MultiInference"
METHODS: Final = (PREDICT, CLASSIFY, REGRESS, MULTI_INFERENCE)


class RequestLog(Protocol):
    """Where some requests are written down. Thread-safe, never blocks or raises."""

    def log(
        self,
        method: str,
        model: str,
        version: int,
        signature: str,
        request: bytes | memoryview,
        response: bytes,
    ) -> None:
        """Samples one answered request; copies what it keeps."""
        ...


class ModelGate:
    """One model's share of the limits, its counters and its logs. Thread-safe.

    Attributes:
        name: The model.
        logs: Where its requests are written; replaced whole, never changed.
        examples: Counts tf.Examples.
        is_forgotten: Whether the model has another by now, or none.

    """

    __slots__ = (
        "_clock",
        "_room",
        "_stats",
        "_stats_by",
        "examples",
        "is_forgotten",
        "logs",
        "name",
    )

    def __init__(
        self, name: str, max_in_flight: int, stats: Stats, clock: Clock
    ) -> None:
        self.name = name
        self.logs: tuple[RequestLog, ...] = ()
        self.is_forgotten = False
        self._stats = stats
        self._clock = clock
        self._room: deque[None] | None = None
        if max_in_flight:
            room = self._room = deque((None,) * max_in_flight)
            stats.gauge(
                stat_names.REQUESTS_IN_FLIGHT,
                lambda: max_in_flight - len(room),
                model=name,
            )
        self.examples = stats.counter(stat_names.REQUEST_EXAMPLES, model=name)
        # By method, version and signature, so that a look-up makes no key. Changed by
        # the loop alone.
        self._stats_by: dict[str, dict[int, dict[str, RequestStats]]] = {
            method: {} for method in METHODS
        }

    def enter(self) -> None:
        """Takes one place; the caller owes a ``leave``.

        Raises:
            Unavailable: The model has as much work as it may; nothing was taken.

        """
        if self._room is not None:
            try:
                self._room.pop()
            except IndexError:
                self._stats.counter(stat_names.REQUESTS_REFUSED, limit="model").add()
                raise Unavailable(
                    f"model {self.name} has as many requests in flight as it may "
                    "(--max_in_flight_per_model); retry after a pause",
                    retry_after_s=RETRY_AFTER_S,
                ) from None

    def leave(self) -> None:
        """Gives the place back. Any thread."""
        if self._room is not None:
            self._room.append(None)

    def enter_all(self, num: int) -> bool:
        """Takes ``num`` places, or none and returns False if there are not as many."""
        return self._room is None or _take_all(self._room, num)

    def leave_all(self, num: int) -> None:
        """Gives ``num`` places back. Any thread."""
        if self._room is not None:
            self._room.extend((None,) * num)

    def stats_of(self, method: str, version: int, signature: str) -> RequestStats:
        """Returns the counters of a signature that exists. On the loop."""
        by_signature = self._stats_by[method].get(version)
        if by_signature is None:
            by_signature = self._stats_by[method][version] = {}
        found = by_signature.get(signature)
        if found is None:
            found = by_signature[signature] = RequestStats(
                self._stats, self._clock, method, self.name, str(version), signature
            )
        return found

    def figures(self, version: int) -> Mapping[str, Sequence[RequestFigures]]:
        """Returns by signature what was counted of a version, an item a method.

        Any thread. Requests for several signatures at once are under "".
        """
        found: dict[str, list[RequestFigures]] = {}
        for by_version in self._stats_by.values():
            for signature, stats in by_version.get(version, {}).copy().items():
                found.setdefault(signature, []).append(stats.figures())
        return found

    def forget(self, version: int) -> None:
        """Drops the counters of a version that is gone. On the loop."""
        for by_version in self._stats_by.values():
            for stats in by_version.pop(version, {}).values():
                stats.forget()


class RequestGate:
    """The limits and counters of a whole server.

    ``enter``, ``model``, ``retain`` and ``forget_version`` belong to one thread, the
    serving loop as a rule; the others may come from any.

    Args:
        max_in_flight: Requests worked on at the same time, over all models; 0 sets
            no limit.
        max_in_flight_per_model: As much for each model.
        stats: Where counters are registered.
        clock: What latencies are measured by.

    """

    def __init__(
        self,
        max_in_flight: int = 0,
        max_in_flight_per_model: int = 0,
        stats: Stats | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._max_in_flight = max_in_flight
        self._max_per_model = max_in_flight_per_model
        self._stats = stats or Stats()
        self._clock = clock or MonotonicClock()
        self.now = self._clock.now
        self._room: deque[None] | None = None
        if max_in_flight:
            room = self._room = deque((None,) * max_in_flight)
            self._stats.gauge(
                stat_names.REQUESTS_IN_FLIGHT, lambda: max_in_flight - len(room)
            )
        self._full = self._stats.counter(stat_names.REQUESTS_REFUSED, limit="server")
        self._models: dict[str, ModelGate] = {}
        self._logs: dict[str, tuple[RequestLog, ...]] = {}
        self._lost = {
            method: RequestStats(self._stats, self._clock, method) for method in METHODS
        }

    @property
    def is_entered(self) -> bool:
        """Whether anything is worked on; False where there is no limit. Any thread."""
        return self._room is not None and len(self._room) < self._max_in_flight

    def enter(self, call: Call, method: str) -> bool:
        """Takes one place; the caller owes a ``leave`` or a ``refuse``.

        Returns False after failing the call with UNAVAILABLE if there is none.
        """
        if self._room is not None:
            try:
                self._room.pop()
            except IndexError:
                self._full.add()
                self._lost[method].end(Code.UNAVAILABLE, self.now())
                call.fail(
                    Unavailable(
                        f"the server has {self._max_in_flight} requests in flight "
                        "(--max_in_flight); retry after a pause",
                        retry_after_s=RETRY_AFTER_S,
                    )
                )
                return False
        return True

    def leave(self) -> None:
        """Gives the place back."""
        if self._room is not None:
            self._room.append(None)

    def enter_all(self, num: int) -> bool:
        """Takes ``num`` places, or none and returns False if there are not as many."""
        return self._room is None or _take_all(self._room, num)

    def leave_all(self, num: int) -> None:
        """Gives ``num`` places back. Any thread."""
        if self._room is not None:
            self._room.extend((None,) * num)

    def refuse(
        self,
        call: Call,
        error: Exception,
        method: str,
        begun_s: float,
        stats: RequestStats | None = None,
    ) -> None:
        """Fails a call that nothing works on yet, counts it and leaves."""
        if not isinstance(error, ServingError):
            log.error("event=handler_failed method=%s", method, exc_info=error)
        self.leave()
        known = serving_error(error, method)
        forget_frames(known)  # they hold the message; who keeps the error need not
        ended = call.cancel.error or known
        (stats or self._lost[method]).end(ended.code, begun_s)
        call.fail(known)

    def model(self, name: str) -> ModelGate:
        """Returns the gate of a model that is served."""
        found = self._models.get(name)
        if found is None:
            found = self._models[name] = ModelGate(
                name, self._max_per_model, self._stats, self._clock
            )
            found.logs = self._logs.get(name, ())
        return found

    def set_logs(self, logs: dict[str, tuple[RequestLog, ...]]) -> None:
        """Replaces where the models' requests are written."""
        self._logs = logs
        for name, model in self._models.items():
            model.logs = logs.get(name, ())

    def figures(
        self, name: str, version: int
    ) -> Mapping[str, Sequence[RequestFigures]]:
        """Returns what was counted of a version; see :meth:`ModelGate.figures`."""
        model = self._models.get(name)
        return {} if model is None else model.figures(version)

    def forget_version(self, name: str, version: int) -> None:
        """Drops the counters of a version that is gone."""
        model = self._models.get(name)
        if model is not None:
            model.forget(version)

    def retain(self, names: Collection[str]) -> None:
        """Forgets models that are not among ``names``, and their counters."""
        for name in [name for name in self._models if name not in names]:
            self._models.pop(name).is_forgotten = True
            self._stats.forget(model=name)


def _take_all(room: deque[None], num: int) -> bool:
    """Takes ``num`` tokens, or none; other threads only ever add some."""
    if len(room) < num:
        return False
    for _ in range(num):
        room.pop()
    return True
