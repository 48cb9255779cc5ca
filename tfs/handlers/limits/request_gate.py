"""How much work the server takes at a time, and how each request ended.

A request enters before it is decoded, so that a full server refuses at next to no cost.
It leaves when nothing works on it any more: a call that is cancelled while its batch
runs keeps its place until then. Both are on the path of every request, so a limit takes
no lock (:class:`InFlightLimit`), and counters are looked up once and kept.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final

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
from tfs.handlers.limits.answered_request import METHODS, RequestLog
from tfs.handlers.limits.in_flight_limit import RETRY_AFTER_S, InFlightLimit
from tfs.handlers.limits.model_gate import ModelGate
from tfs.handlers.limits.request_stats import RequestFigures, RequestStats

log = logging.getLogger(__name__)


class RequestGate:
    """The limits and counters of a whole server.

    ``enter``, ``model``, ``retain``, ``set_logs`` and ``forget_version`` are for one
    thread, normally the serving loop. The other methods are thread-safe.

    Args:
        max_in_flight: Requests worked on at the same time, over all models; 0 sets
            no limit.
        max_in_flight_per_model: Most requests in flight for each model.
        stats: Where counters are registered.
        clock: What latencies are measured by.

    Attributes:
        in_flight: How many requests there may be.
        leave: Gives back the place that ``enter`` took. Any thread.
        enter_all: See :meth:`InFlightLimit.take_all`.
        leave_all: See :meth:`InFlightLimit.give_all_back`. Any thread.

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
        self.in_flight = in_flight = InFlightLimit(max_in_flight)
        self._take = in_flight.take
        # These are called for each request, so no methods of ours are put around them.
        self.leave: Final = in_flight.give_back
        self.enter_all: Final = in_flight.take_all
        self.leave_all: Final = in_flight.give_all_back
        if max_in_flight:
            self._stats.gauge(
                stat_names.REQUESTS_IN_FLIGHT, lambda: in_flight.num_taken
            )
        self._full = self._stats.counter(stat_names.REQUESTS_REFUSED, limit="server")
        self._models: dict[str, ModelGate] = {}
        self._logs: dict[str, tuple[RequestLog, ...]] = {}
        self._lost = {
            method: RequestStats(self._stats, self._clock, method) for method in METHODS
        }

    def enter(self, call: Call, method: str) -> bool:
        """Takes one place; the caller owes a ``leave`` or a ``refuse``.

        Returns False after failing the call with UNAVAILABLE if there is none.
        """
        try:
            self._take()
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
        forget_frames(known)  # frames would keep the message alive
        ended = call.cancel.error or known
        (stats or self._lost[method]).end(ended.code, begun_s)
        if call.cancel.trace is not None:
            now_s = self.now()
            call.cancel.trace.end(ended.code, begun_s, now_s, now_s)
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

    def set_logs(self, logs: Mapping[str, tuple[RequestLog, ...]]) -> None:
        """Sets where the requests of these models are logged; of others, nothing changes."""
        self._logs.update(logs)
        for name, each in logs.items():
            model = self._models.get(name)
            if model is not None:
                model.logs = each

    def figures(
        self, name: str, version: int
    ) -> Mapping[str, Sequence[RequestFigures]]:
        """Returns what was counted of a version; see :meth:`ModelGate.figures`."""
        model = self._models.get(name)
        return {} if model is None else model.figures(version)

    def totals(self) -> Mapping[str, Mapping[str, RequestFigures]]:
        """Returns what was counted by model and method; see :meth:`ModelGate.totals`."""
        return {name: each.totals() for name, each in self._models.copy().items()}

    def forget_version(self, name: str, version: int) -> None:
        """Drops the counters of a version that is gone."""
        model = self._models.get(name)
        if model is not None:
            model.forget(version)

    def retain(self, names: Collection[str]) -> None:
        """Forgets models that are not among ``names``, and their counters."""
        self._logs = {name: each for name, each in self._logs.items() if name in names}
        gone = [name for name in self._models if name not in names]
        for name in gone:
            self._models.pop(name).is_forgotten = True
        if gone:
            self._stats.forget("model", gone)
