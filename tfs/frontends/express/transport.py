"""The express transport: many connections on one serving loop.

Sockets are read when they are ready, and calls are answered whenever a handler is done.
Writing happens once per round and connection, in the FLUSH phase: by then the batches
of the round have been scheduled, and answers that were computed at once are known.

Rejected, each measured with grpcio.aio clients that send requests one by one, 16 of them
in flight:

* Delaying the few requests of a round by 0.1 ms until more have come saves only a
  twentieth of their processor time.
* Beginning rounds at least 0.3 ms apart saves a sixth of it. But if that distance is
  derived from how a client behaves, its rate falls by as much.
* Sleeping for another 0.09 ms after each sleep, once a few requests were seen to be
  followed by more, saves a tenth with 16 in flight at no cost, and nothing with 12. It
  costs 11 % of the rate with 8 in flight, and 6 % with 24.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from threading import get_ident
from typing import Final

from tfs.core import stat_names
from tfs.core.call import ListenerOptions, MethodTable, Peer
from tfs.core.executor import Executor, ThreadExecutor
from tfs.core.loop.serving_loop import Phase, ServingLoop
from tfs.core.stats import Stats
from tfs.frontends.budget import MemoryBudget
from tfs.frontends.clients import Clients
from tfs.frontends.express.call import ExpressCall, hand_over
from tfs.frontends.express.client_state import ExpressOptions, SharedState
from tfs.frontends.express.session import Session
from tfs.frontends.http2.connection import Connection
from tfs.frontends.listener import Listener
from tfs.frontends.wire import Wire

_MUCH_BYTES: Final = 16 << 20
_COPIED_BYTES: Final = 8 << 20  # of answers, in one round
_SLOW_ROUND_S: Final = 0.1


class ExpressTransport:
    """A :class:`tfs.core.call.Transport` that speaks HTTP/2 itself.

    ``start``, ``drain`` and ``close`` are for any one thread but the loop's (``close``
    for the loop's too); everything else is confined to the serving loop.

    Attributes:
        budget: The server's, which may count for other protocols as well.
        clients: Its clients, and what happened to them.

    Args:
        loop: The serving loop. The caller runs it, and closes it after this transport.
        options: Limits and timeouts.
        executor: Decompresses requests and performs TLS handshakes. By default the
            transport uses a thread of its own for each, started when first needed.
        stats: The registry in which counters are published; None publishes nothing.
        on_large_message: Called on the loop after each compressed message, and
            repeatedly while large messages arrive or wait to be read; a last time after
            that.
        budget: The memory that clients can make the server take, shared with other
            protocols; by default one of ``max_receive_bytes`` for this transport alone.

    """

    def __init__(
        self,
        loop: ServingLoop,
        options: ExpressOptions | None = None,
        executor: Executor | None = None,
        stats: Stats | None = None,
        on_large_message: Callable[[], None] = lambda: None,
        budget: MemoryBudget | None = None,
    ) -> None:
        options = options or ExpressOptions()
        self._own_executor = executor is None
        self.budget = budget or MemoryBudget(options.max_receive_bytes, loop.post)
        self._shared = SharedState(
            loop,
            options,
            executor or ThreadExecutor(1, "express-inflate"),
            on_large_message,
            self.budget,
        )
        self._hand_over = partial(hand_over, self._shared)
        self._tls_executor = executor or ThreadExecutor(1, "express-tls")
        self._options = options
        self._loop = loop
        self._now = loop.clock.now
        self._had_much = False  # whether clients had much at the last sweep
        self._num_admitted = 0  # by then
        self._methods: MethodTable = {}
        self._of_services: dict[Collection[str] | None, MethodTable] = {}
        self.clients = self._shared.clients = Clients(
            loop,
            self.budget,
            options,
            self._tls_executor,
            self._make_session,
            self._on_sweep,
        )
        if stats is not None:
            publish(stats, self.clients, self.budget)

    def start(
        self, listeners: Sequence[ListenerOptions], methods: MethodTable
    ) -> Sequence[str]:
        """Opens the listeners; returns their addresses with the real ports.

        Raises:
            Unavailable: An address is in use or cannot be bound, or certificates
                cannot be used; nothing is open.

        """
        self._methods = methods
        addresses = self.clients.open(listeners)
        self._loop.post(self._begin)
        return addresses

    def drain(self, deadline_s: float) -> bool:
        """Refuses new calls; blocks until accepted ones are finished.

        Returns whether all were finished by the (monotonic) deadline.
        """
        return self.clients.drain(deadline_s)

    def close(self) -> None:
        """Closes every connection and listener; idempotent."""
        self.clients.close(self._end)

    # -- on the loop -----------------------------------------------------------------

    def _begin(self) -> None:
        if self.clients.is_closed:
            return
        self._shared.loop_ident = get_ident()
        self._loop.add_round_hook(self._hand_over, Phase.HAND_OVER)
        self._loop.add_round_hook(self._flush, Phase.FLUSH)
        self.clients.begin()

    def _make_session(self, wire: Wire, peer: Peer, listener: Listener) -> Session:
        services = listener.options.services
        methods = self._of_services.get(services)
        if methods is None:
            methods = self._of_services[services] = {
                path: method
                for path, method in self._methods.items()
                if services is None or method.service in services
            }
        return Session(self._shared, wire, peer, methods)

    def _flush(self, now_s: float) -> float | None:
        shared = self._shared
        shared.wants_round = False
        if shared.opened:
            # If models answer at once, most calls are finished by now and need none.
            calls: list[ExpressCall] = shared.opened
            shared.opened = []
            for call in calls:
                if not call.is_finished and call.deadline_s is not None:
                    call.timer = self._loop.call_at(call.deadline_s, call.expire)
        if shared.unfinished:
            # Posted at the end of the round, so that it runs in the next one.
            for go_on in shared.unfinished:
                self._loop.post(go_on)
            shared.unfinished.clear()
        dirty = shared.dirty
        if dirty:
            shared.dirty = []
            for flush in dirty:
                flush()
        if shared.late:
            shared.late.popleft()()
            shared.wants_round = True  # for what that brought, and for the next
        copied_bytes = 0
        while shared.attached and copied_bytes < _COPIED_BYTES:
            outbox = shared.attached.pop()
            copied_bytes += outbox.size_bytes
            outbox.detach()
            shared.wants_round = True
        if shared.round_begun_s is not None:
            took_s = self._now() - shared.round_begun_s
            shared.round_begun_s = None
            self.clients.counters.slow_rounds += took_s > _SLOW_ROUND_S
        return now_s if shared.wants_round else None

    def _on_sweep(self) -> None:
        # on_large_message postpones the return of free memory, which should not happen
        # while more large messages come.
        budget = self.budget
        had_much, num_before = self._had_much, self._num_admitted
        self._had_much = budget.used_bytes >= _MUCH_BYTES
        self._num_admitted = budget.num_admitted
        if had_much or self._had_much or num_before != budget.num_admitted:
            self._shared.on_large_message()

    def _end(self) -> None:
        self._loop.remove_round_hook(self._hand_over)
        self._loop.remove_round_hook(self._flush)
        if self._own_executor:
            self._shared.executor.close(self._now())
            self._tls_executor.close(self._now())


def publish(stats: Stats, clients: Clients[Session], budget: MemoryBudget) -> None:
    """Registers a transport's numbers. They may lag by what is in flight."""
    counters = clients.counters

    def total(read: Callable[[Connection], int]) -> int:
        return sum(read(session.connection) for session in list(clients.sessions))

    def num_answered() -> int:
        return counters.answered + total(lambda each: each.sender.num_answered)

    def num_decoded() -> int:
        return counters.decoded_heads + total(lambda each: each.heads.num_decoded)

    def num_resets() -> int:
        return counters.resets + total(lambda each: each.control.num_resets)

    connections: dict[str, Callable[[], int]] = {
        "handshake": lambda: len(clients.handshakes.under_way),
        "open": lambda: len(clients.sessions),
    }
    heads: dict[str, Callable[[], int]] = {
        "decoded": num_decoded,
        # Those that were not decoded were found in the cache. Neither number includes
        # calls in progress.
        "cached": lambda: max(0, num_answered() - num_decoded()),
    }
    connection_events: dict[str, Callable[[], int]] = {
        "accepted": lambda: counters.connections,
        "refused": lambda: counters.refused_connections,
        "failed_handshake": lambda: counters.failed_handshakes,
        "fault": lambda: counters.faults,
        "flood": lambda: counters.floods,
        "failure": lambda: counters.failures,
        "timeout": lambda: counters.timeouts,
    }
    call_events: dict[str, Callable[[], int]] = {
        "answered": num_answered,
        "reset": num_resets,
        "cut_off": lambda: counters.cut_off_calls,
        "handler_failure": lambda: counters.handler_failures,
        "late_finish": lambda: counters.late_finishes,
    }
    gauge = stats.gauge
    for state, read in connections.items():
        gauge(stat_names.RPC_CONNECTIONS, read, state=state)
    for how, read in heads.items():
        gauge(stat_names.RPC_HEADS, read, how=how)
    for event, read in connection_events.items():
        gauge(stat_names.RPC_CONNECTION_EVENTS, read, event=event)
    for event, read in call_events.items():
        gauge(stat_names.RPC_CALL_EVENTS, read, event=event)
    gauge(stat_names.RPC_STREAMS, lambda: total(lambda each: len(each.streams)))
    gauge(stat_names.RPC_RECEIVE_BYTES, lambda: budget.used_bytes)
    gauge(stat_names.RPC_FAILED_ACCEPTS, lambda: counters.failed_accepts)
    gauge(stat_names.RPC_SLOW_ROUNDS, lambda: counters.slow_rounds)
