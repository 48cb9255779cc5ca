"""One model's share of the limits on requests, its counters and its logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from tfs.core import stat_names
from tfs.core.clock import Clock
from tfs.core.errors import Unavailable
from tfs.core.signature import Signature
from tfs.core.stats import Stats
from tfs.handlers.limits.answered_request import METHODS, RequestLog
from tfs.handlers.limits.in_flight_limit import RETRY_AFTER_S, InFlightLimit
from tfs.handlers.limits.request_stats import (
    RequestFigures,
    RequestPhases,
    RequestStats,
)

_Counters: TypeAlias = dict[str, dict[int, dict[str, RequestStats]]]
"""Counters by method, version and signature."""


class ModelGate:
    """One model's share of the limits, its counters and its logs. Thread-safe.

    Attributes:
        name: The model.
        in_flight: How many of its requests there may be.
        logs: Where its requests are logged; replaced as a whole, never changed.
        examples: Counts tf.Examples.
        is_forgotten: Whether the model has another gate by now, or none.
        leave: Gives back the place that ``enter`` took. Any thread.
        enter_all: See :meth:`InFlightLimit.take_all`.
        leave_all: See :meth:`InFlightLimit.give_all_back`. Any thread.

    """

    __slots__ = (
        "_clock",
        "_counted",
        "_phases",
        "_stats",
        "_stats_by",
        "_take",
        "enter_all",
        "examples",
        "in_flight",
        "is_forgotten",
        "leave",
        "leave_all",
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
        self.in_flight = in_flight = InFlightLimit(max_in_flight)
        self._take = in_flight.take
        # These are called for each request, so no methods of ours are put around them.
        self.leave: Final = in_flight.give_back
        self.enter_all: Final = in_flight.take_all
        self.leave_all: Final = in_flight.give_all_back
        if max_in_flight:
            stats.gauge(
                stat_names.REQUESTS_IN_FLIGHT, lambda: in_flight.num_taken, model=name
            )
        self._phases = RequestPhases(name)
        stats.add_source(self._phases)
        self.examples = stats.counter(stat_names.REQUEST_EXAMPLES, model=name)
        # Nested by method, version and signature, so that a look-up makes no key. Only
        # the loop changes it.
        self._stats_by: _Counters = {method: {} for method in METHODS}
        # The same, with what was counted by method of versions that are gone: replaced
        # together, so that no reader sees a sum fall.
        self._counted: tuple[_Counters, Mapping[str, RequestFigures]]
        self._counted = self._stats_by, {}

    def enter(self) -> None:
        """Takes one place; the caller owes a ``leave``.

        Raises:
            Unavailable: The model has as many requests in flight as allowed; nothing
            was taken.

        """
        try:
            self._take()
        except IndexError:
            self._stats.counter(stat_names.REQUESTS_REFUSED, limit="model").add()
            raise Unavailable(
                f"model {self.name} has as many requests in flight as it may "
                "(--max_in_flight_per_model); retry after a pause",
                retry_after_s=RETRY_AFTER_S,
            ) from None

    def stats_of(
        self, method: str, version: int, key: str, signature: Signature | None = None
    ) -> RequestStats:
        """Returns the counters of a signature that exists. On the loop.

        If it is given, its fixed sizes tell how long its first answers are at least.
        """
        by_signature = self._stats_by[method].get(version)
        if by_signature is None:
            by_signature = self._stats_by[method][version] = {}
        found = by_signature.get(key)
        if found is None:
            found = by_signature[key] = RequestStats(
                self._stats,
                self._clock,
                method,
                self.name,
                str(version),
                key,
                self._phases,
                0 if signature is None else signature.least_answer_bytes,
            )
        return found

    def figures(self, version: int) -> Mapping[str, Sequence[RequestFigures]]:
        """Returns what was counted of a version: by signature, one item per method.

        Any thread. Requests for several signatures at once are found under "".
        """
        found: dict[str, list[RequestFigures]] = {}
        for by_version in self._stats_by.values():
            for signature, stats in by_version.get(version, {}).copy().items():
                found.setdefault(signature, []).append(stats.figures())
        return found

    def totals(self) -> Mapping[str, RequestFigures]:
        """Returns what was counted, by method, of versions that are gone, too. Any thread."""
        counters, ended = self._counted
        totals = dict(ended)
        for method, by_version in counters.items():
            for by_signature in by_version.copy().values():
                for stats in by_signature.copy().values():
                    _add(totals, method, stats.figures())
        return totals

    def forget(self, version: int) -> None:
        """Drops the counters of a version that is gone. On the loop."""
        counters, ended = self._counted
        totals = dict(ended)
        self._stats_by = {
            method: {v: each for v, each in by_version.items() if v != version}
            for method, by_version in counters.items()
        }
        for method, by_version in counters.items():
            for stats in by_version.get(version, {}).values():
                _add(totals, method, stats.figures())
                stats.forget()
        self._counted = self._stats_by, totals


def _add(
    totals: dict[str, RequestFigures], method: str, figures: RequestFigures
) -> None:
    before = totals.get(method)
    totals[method] = figures if before is None else before + figures
