"""The express transport: many connections on one serving loop.

Reading happens when a socket is ready, answering whenever a handler is done, and
writing once per round and connection, in the FLUSH phase, after the batches of the
round were scheduled and what they answered at once is known.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import Final

from tfs.core.call import ListenerOptions, MethodTable
from tfs.core.executor import Executor, ThreadExecutor
from tfs.core.serving_loop import Phase, ServingLoop
from tfs.frontends.rpc.express.deadlines import Deadlines
from tfs.frontends.rpc.express.express_call import ExpressCall
from tfs.frontends.rpc.express.flow_control import ReceiveBudget
from tfs.frontends.rpc.express.listener import Listener
from tfs.frontends.rpc.express.options import ExpressOptions
from tfs.frontends.rpc.express.session import Session

log = logging.getLogger(__name__)

_ACCEPTS_PER_ROUND: Final = 64
_ACCEPT_PAUSE_S: Final = 1.0
_CLOSE_TIMEOUT_S: Final = 5.0
_MIN_GRANT_BYTES: Final = 16_384
_OUT_OF_FILES: Final = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
)


@dataclass(slots=True)
class ExpressCounters:
    """What happened since the start. Written by the loop, read by anybody.

    Attributes:
        connections: Accepted.
        refused_connections: Closed at once: too many.
        faults: Connections closed because the peer broke a rule or was a nuisance.
        failures: Connections closed because our own code raised.
        timeouts: Connections and calls given up for being silent.
        handler_failures: Exceptions that handlers raised.
        cut_off_calls: Calls that ended without their handler.
        late_finishes: Finishes of calls that had ended already.
        slow_rounds: Rounds beyond ``slow_round_s``.

    """

    connections: int = 0
    refused_connections: int = 0
    faults: int = 0
    failures: int = 0
    timeouts: int = 0
    handler_failures: int = 0
    cut_off_calls: int = 0
    late_finishes: int = 0
    slow_rounds: int = 0


class ExpressTransport:
    """A :class:`tfs.core.call.Transport` that speaks HTTP/2 itself.

    ``start``, ``drain`` and ``close`` are for any one thread but the loop's (``close``
    for the loop's too); everything else is confined to the serving loop.

    Attributes:
        loop: Runs it.
        options: As given.
        budget: The server's receive budget.
        deadlines: Of all unfinished calls.
        counters: What happened.
        dirty: Sessions that want to be flushed this round.
        starved: Sessions whose clients wait for the receive budget.
        executor: Where gzip is undone.
        loop_ident: The loop's thread, known once the listeners are watched.

    Args:
        loop: Running, or to be run by the caller; closed by the caller, after this.
        options: Limits and timeouts.
        executor: Decompresses requests; by default a thread of the transport's own,
            started when first needed.

    """

    def __init__(
        self,
        loop: ServingLoop,
        options: ExpressOptions | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.loop = loop
        self.options = options or ExpressOptions()
        self.budget = ReceiveBudget(self.options.max_receive_bytes)
        self.deadlines: Deadlines[ExpressCall] = Deadlines(loop, _expire)
        self.counters = ExpressCounters()
        self.now: Callable[[], float] = loop.clock.now
        self.dirty: list[Session] = []
        self.starved: set[Session] = set()
        self.loop_ident = 0
        self._own_executor = executor is None
        self.executor: Executor = executor or ThreadExecutor(1, "express-gunzip")
        self._listeners: list[Listener] = []
        self._sessions: set[Session] = set()
        self._methods: dict[str, MethodTable] = {}
        self._wants_round = False
        self._is_sweeping = False
        self._is_draining = False
        self._is_closed = False
        self._round_begun_s: float | None = None
        # Guards _is_drained; leaf lock.
        self._changed = threading.Condition()
        self._is_drained = False

    def start(
        self, listeners: Sequence[ListenerOptions], methods: MethodTable
    ) -> Sequence[str]:
        """Opens the listeners; returns their addresses with the real ports.

        Raises:
            Unavailable: An address is in use or cannot be bound; nothing is open.
            Unimplemented: A listener asks for TLS; nothing is open.

        """
        opened: list[Listener] = []
        try:
            for options in listeners:
                listener = Listener(options)
                opened.append(listener)
        except BaseException:
            for listener in opened:
                listener.close()
            raise
        for options in listeners:
            self._methods[options.name] = {
                path: method
                for path, method in methods.items()
                if options.services is None or method.service in options.services
            }
        self._listeners = opened
        self.loop.post(self._begin)
        return [listener.address for listener in opened]

    def drain(self, deadline_s: float) -> bool:
        """Takes no new calls; blocks until those taken are finished.

        Returns whether all were finished by the (monotonic) deadline.
        """
        self.loop.post(self._begin_drain)
        with self._changed:
            while not self._is_drained and self.now() < deadline_s:
                self.loop.clock.wait(self._changed, deadline_s)
            return self._is_drained

    def close(self) -> None:
        """Closes every connection and listener; idempotent."""
        if self._is_closed:
            return
        if not self.loop.is_loop_thread:
            closed = threading.Event()

            def close_on_loop() -> None:
                self._close()
                closed.set()

            self.loop.post(close_on_loop)
            if closed.wait(_CLOSE_TIMEOUT_S):
                return
        self._close()  # on the loop, or there is no loop any more

    # -- on the loop -----------------------------------------------------------------

    def _begin(self) -> None:
        if self._is_closed:
            return
        self.loop_ident = get_ident()
        self.loop.add_round_hook(self._flush, Phase.FLUSH)
        for listener in self._listeners:
            self._watch(listener)

    def _watch(self, listener: Listener) -> None:
        if listener in self._listeners:
            self.loop.watch(listener.socket.fileno(), partial(self._accept, listener))

    def _accept(self, listener: Listener, events: int) -> None:
        for _ in range(_ACCEPTS_PER_ROUND):
            try:
                client, peer = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OUT_OF_FILES:
                    self._pause(listener, error)
                    return
                continue  # the client left before we came: ECONNABORTED and kin
            if len(self._sessions) >= self.options.max_connections:
                self.counters.refused_connections += 1
                client.close()
                continue
            self.counters.connections += 1
            methods = self._methods[listener.options.name]
            self._sessions.add(Session(self, client, peer, methods, self.now()))
        if not self._is_sweeping:
            self._is_sweeping = True
            self._sweep_later()

    def _pause(self, listener: Listener, error: OSError) -> None:
        """Leaves a listener alone for a while: accepting cannot succeed now."""
        log.error(
            "event=accept_failed listener=%s error=%s", listener.options.name, error
        )
        self.loop.unwatch(listener.socket.fileno())
        self.loop.call_at(self.now() + _ACCEPT_PAUSE_S, partial(self._watch, listener))

    def go_on_next_round(self, session: Session) -> None:
        """Lets a session that had too much for one round go on in the next."""
        self.loop.post(session.go_on)

    def wake_up(self) -> None:
        """Asks for another round at once."""
        self._wants_round = True

    def _flush(self, now_s: float) -> float | None:
        self._wants_round = False
        dirty = self.dirty
        if dirty:
            self.dirty = []
            for session in dirty:
                session.flush()
        if self.starved and self.budget.free_bytes >= _MIN_GRANT_BYTES:
            self._refill()
        if self._is_draining:
            self._check_drained()
        return now_s if self._wants_round else None

    def _refill(self) -> None:
        starved, self.starved = self.starved, set()
        for session in starved:
            if session.is_closed:
                continue
            session.connection.refill()
            if session.connection.is_starved:
                self.starved.add(session)
            if session.connection.has_output:
                session.mark_dirty()
                self._wants_round = True

    def _sweep_later(self) -> None:
        self.loop.call_at(self.now() + self.options.sweep_interval_s, self._sweep)

    def _sweep(self) -> None:
        if not self._sessions:
            self._is_sweeping = False  # an idle server sleeps
            return
        now_s = self.now()
        for session in list(self._sessions):
            try:
                session.sweep(now_s)
            except Exception as error:
                session.on_failure(error)
        self._sweep_later()

    def on_session_closed(self, session: Session) -> None:
        """A session closed its socket."""
        self._sessions.discard(session)
        self.starved.discard(session)

    # -- the end -----------------------------------------------------------------------

    def _begin_drain(self) -> None:
        if self._is_draining or self._is_closed:
            return
        self._is_draining = True
        self._close_listeners()
        for session in list(self._sessions):
            session.connection.begin_drain()
            session.mark_dirty()
        self.loop.call_at(self.now() + self.options.drain_grace_s, self._finish_drain)

    def _finish_drain(self) -> None:
        for session in list(self._sessions):
            session.connection.finish_drain()
            session.mark_dirty()

    def _check_drained(self) -> None:
        if not self._sessions and not self._is_drained:
            with self._changed:
                self._is_drained = True
                self._changed.notify_all()

    def _close_listeners(self) -> None:
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            self.loop.unwatch(listener.socket.fileno())
            listener.close()

    def _close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._close_listeners()
        for session in list(self._sessions):
            session.close()
        self.deadlines.close()
        self.loop.remove_round_hook(self._flush)
        if self._own_executor:
            self.executor.close(self.now())
        with self._changed:
            self._is_drained = True
            self._changed.notify_all()


def _expire(call: ExpressCall) -> None:
    call.expire()
