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

import errno
import itertools
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from threading import get_ident
from typing import Final

from tfs.core.call import ListenerOptions, MethodTable, Peer
from tfs.core.executor import Executor, ThreadExecutor
from tfs.core.serving_loop import Phase, ServingLoop
from tfs.core.stats import Stats
from tfs.frontends.rpc.express.backlog import Backlog
from tfs.frontends.rpc.express.connection import Connection
from tfs.frontends.rpc.express.flow_control import ReceiveBudget
from tfs.frontends.rpc.express.listener import Listener
from tfs.frontends.rpc.express.lone_caller import LoneCaller
from tfs.frontends.rpc.express.options import ExpressOptions
from tfs.frontends.rpc.express.published_stats import publish
from tfs.frontends.rpc.express.session import Session
from tfs.frontends.rpc.express.shared_state import (
    ExpressCounters,
    SharedState,
    SlowReader,
    StarvedSession,
)
from tfs.frontends.rpc.express.tls_contexts import TlsContexts
from tfs.frontends.rpc.express.tls_handshake import TlsHandshake
from tfs.frontends.rpc.express.tls_session import TlsSession
from tfs.frontends.rpc.express.tls_stream import TlsStream

log = logging.getLogger(__name__)

_ACCEPTS_PER_ROUND: Final = 64
_ACCEPT_PAUSE_S: Final = 1.0
_CLOSE_TIMEOUT_S: Final = 5.0
_MIN_GRANT_BYTES: Final = 16_384
_LARGE_BYTES: Final = 1 << 20
_SCARCITY_INTERVAL_S: Final = 0.5  # a trim takes milliseconds
_FEW_STARVED: Final = 2  # more are a crowd: their messages take what arrived of them
_PROBED_AT_ONCE: Final = 8  # of those who wait for room
_RESPONSIVE_S: Final = 2.0  # after it was seen, a client is thought to go on
_MAX_PLAIN_HOSTS: Final = 1024
_TOLD_PER_ROUND: Final = 100
_SWEPT_PER_ROUND: Final = 1000  # connections and streams: 0.3 ms
_OUT_OF_FILES: Final = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
)


class ExpressTransport:
    """A :class:`tfs.core.call.Transport` that speaks HTTP/2 itself.

    ``start``, ``drain`` and ``close`` are for any one thread but the loop's (``close``
    for the loop's too); everything else is confined to the serving loop.

    Args:
        loop: Running, or to be run by the caller; closed by the caller, after this.
        options: Limits and timeouts.
        executor: Decompresses requests and shakes hands; by default a thread of the
            transport's own for each, started when first needed.
        stats: Where what happens is published; None keeps it to ``counters``.
        on_large_message: Called on the loop after each compressed message, and
            repeatedly while large messages arrive or wait to be read; a last time after
            that.
        on_scarcity: Called on the loop while requests wait for memory: at once, and then
            about once a second.

    """

    def __init__(
        self,
        loop: ServingLoop,
        options: ExpressOptions | None = None,
        executor: Executor | None = None,
        stats: Stats | None = None,
        on_large_message: Callable[[], None] = lambda: None,
        on_scarcity: Callable[[], None] = lambda: None,
    ) -> None:
        self._own_executor = executor is None
        self._shared = SharedState(
            loop,
            options or ExpressOptions(),
            executor or ThreadExecutor(1, "express-inflate"),
            on_large_message,
        )
        self._tls_executor = executor or ThreadExecutor(1, "express-tls")
        self._options = self._shared.options
        self._loop = loop
        self._now = loop.clock.now
        self._lone_caller = LoneCaller(loop, self._options.look_s)
        self._listeners: list[Listener] = []
        self._sessions: set[Session] = set()
        self._handshakes: dict[TlsHandshake, None] = {}  # the oldest first
        self._methods: dict[Listener, MethodTable] = {}
        self._plain_hosts: set[str] = set()  # whose clients were seen to speak no TLS
        self._is_sweeping = False
        self._told_streams = self._shared.budget.told_streams_each
        self._on_scarcity = on_scarcity
        self._scarce_at_s = -inf  # when that was called last
        self._num_turns = 0  # of those who waited for room
        self._had_turn: StarvedSession | None = None  # was favoured last
        self._had_unread = False  # large answers, when timeouts were last looked at
        self._is_draining = False
        self._is_closed = False
        # Guards _is_drained; leaf lock.
        self._changed = threading.Condition()
        self._is_drained = False
        if stats is not None:
            publish(stats, self)

    def start(
        self, listeners: Sequence[ListenerOptions], methods: MethodTable
    ) -> Sequence[str]:
        """Opens the listeners; returns their addresses with the real ports.

        Raises:
            Unavailable: An address is in use or cannot be bound, or certificates
                cannot be used; nothing is open.

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
        for listener in opened:
            services = listener.options.services
            self._methods[listener] = {
                path: method
                for path, method in methods.items()
                if services is None or method.service in services
            }
        self._listeners = opened
        self._loop.post(self._begin)
        return [listener.address for listener in opened]

    def drain(self, deadline_s: float) -> bool:
        """Takes no new calls; blocks until those taken are finished.

        Returns whether all were finished by the (monotonic) deadline.
        """
        self._loop.post(self._begin_drain)
        with self._changed:
            while not self._is_drained and self._now() < deadline_s:
                self._loop.clock.wait(self._changed, deadline_s)
            return self._is_drained

    def close(self) -> None:
        """Closes every connection and listener; idempotent."""
        if self._is_closed:
            return
        if not self._loop.is_loop_thread:
            closed = threading.Event()

            def close_on_loop() -> None:
                self._close()
                closed.set()

            self._loop.post(close_on_loop)
            if closed.wait(_CLOSE_TIMEOUT_S):
                return
        self._close()  # on the loop, or there is no loop any more

    @property
    def counters(self) -> ExpressCounters:
        """What happened since the start."""
        return self._shared.counters

    @property
    def num_handshakes(self) -> int:
        """TLS handshakes under way. Thread-safe."""
        return len(self._handshakes)

    def connections(self) -> list[Connection]:
        """Returns the open connections, to be looked at only. Thread-safe."""
        return [session.connection for session in list(self._sessions)]

    @property
    def budget(self) -> ReceiveBudget:
        """The server's receive budget."""
        return self._shared.budget

    # -- on the loop -----------------------------------------------------------------

    def _begin(self) -> None:
        if self._is_closed:
            return
        self._shared.loop_ident = get_ident()
        self._loop.add_round_hook(self._hand_over, Phase.HAND_OVER)
        self._loop.add_round_hook(self._flush, Phase.FLUSH)
        for listener in self._listeners:
            for listening in listener.sockets:
                self._watch(listener, listening)

    def _watch(self, listener: Listener, listening: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.watch(
                listening.fileno(), partial(self._accept, listener, listening)
            )

    def _accept(
        self, listener: Listener, listening: socket.socket, events: int
    ) -> None:
        for _ in range(_ACCEPTS_PER_ROUND):
            try:
                client, peer = listener.accept(listening)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in _OUT_OF_FILES:
                    self._pause(listener, listening, error)
                    break
                continue  # the client left before we came: ECONNABORTED and kin
            if self._num_connections >= self._options.max_connections:
                self._shared.counters.refused_connections += 1
                client.close()
                continue
            self._shared.counters.connections += 1
            methods = self._methods[listener]
            if listener.tls is not None:
                self._shake_hands(listener.tls, client, peer, methods)
                continue
            self._sessions.add(
                Session(self._shared, client, peer, methods, self._sessions.discard)
            )
        if self._shared.budget.told_streams_each < self._told_streams:
            self._tell_streams(iter(list(self._sessions)))
        self._told_streams = self._shared.budget.told_streams_each
        if not self._is_sweeping:
            self._is_sweeping = True
            self._sweep_later()

    def _tell_streams(self, sessions: Iterator[Session]) -> None:
        """Tells clients that they may have fewer streams, a few clients per round."""
        for session in itertools.islice(sessions, _TOLD_PER_ROUND):
            session.tell_streams()
        if not self._is_closed:
            left = next(sessions, None)
            if left is not None:
                rest = itertools.chain((left,), sessions)
                self._loop.post(partial(self._tell_streams, rest))

    @property
    def _num_connections(self) -> int:
        return len(self._sessions) + len(self._handshakes)

    def _shake_hands(
        self,
        contexts: TlsContexts,
        client: socket.socket,
        peer: Peer,
        methods: MethodTable,
    ) -> None:
        if len(self._handshakes) >= self._options.max_handshakes:
            # A crowd of slow ones must not keep the others out.
            slow = (each for each in self._handshakes if not each.is_busy)
            oldest = next(slow, None)
            if oldest is None:
                self._shared.counters.refused_connections += 1
                client.close()
                return
            oldest.close()
        handshake = TlsHandshake(
            self._loop,
            self._tls_executor,
            contexts,
            client,
            peer,
            partial(self._on_trusted, methods),
            self._on_handshake_failed,
        )
        self._handshakes[handshake] = None

    def _on_trusted(
        self, methods: MethodTable, handshake: TlsHandshake, tls: TlsStream
    ) -> None:
        del self._handshakes[handshake]
        session = TlsSession(
            self._shared,
            handshake.client,
            replace(handshake.peer, identity=tls.peer_names),
            methods,
            self._sessions.discard,
            tls,
            handshake.unsent,
        )
        self._sessions.add(session)
        session.begin()

    def _on_handshake_failed(self, handshake: TlsHandshake) -> None:
        self._shared.counters.failed_handshakes += 1
        del self._handshakes[handshake]
        if handshake.is_plain_grpc:
            self._tell_of_plain_client(handshake.peer)

    def _tell_of_plain_client(self, peer: Peer) -> None:
        """Logs, once per host, that its client ignores how many streams it may have."""
        host = peer.address.rpartition(":")[0]
        if host not in self._plain_hosts:
            if len(self._plain_hosts) >= _MAX_PLAIN_HOSTS:
                self._plain_hosts.clear()
            self._plain_hosts.add(host)
            log.warning(
                "event=client_without_tls listener=%s peer=%s note=%r",
                peer.listener,
                peer.address,
                "this listener takes gRPC within TLS only; the client, which sees a "
                "closed socket, needs a secure channel",
            )

    def _pause(
        self, listener: Listener, listening: socket.socket, error: OSError
    ) -> None:
        """Stops accepting on a listener for a while, because it cannot succeed now."""
        log.error(
            "event=accept_failed listener=%s error=%s", listener.options.name, error
        )
        self._loop.unwatch(listening.fileno())
        self._loop.call_at(
            self._now() + _ACCEPT_PAUSE_S, partial(self._watch, listener, listening)
        )

    def _hand_over(self, now_s: float) -> None:
        if self._shared.arrived:
            self._shared.hand_over()

    def _flush(self, now_s: float) -> float | None:
        shared = self._shared
        shared.wants_round = False
        if shared.opened:
            shared.watch_deadlines(now_s)
        if shared.starved or shared.favoured is not None:
            self._feed_starved()
        if shared.unfinished:
            # Posted only now: what is posted earlier would run within this round.
            for go_on in shared.unfinished:
                self._loop.post(go_on)
            shared.unfinished.clear()
        dirty = shared.dirty
        if shared.late:
            dirty += shared.late
            shared.late = []
        if dirty:
            shared.dirty = []
            for flush in dirty:
                flush()
            caller = shared.turns.last
            if len(dirty) == 1 and isinstance(caller, Session):
                self._lone_caller.note_round(caller.connection)
            if shared.backlog.num_bytes:
                self._relieve(shared.backlog)
        if shared.waiting or shared.begun:
            self._look_at_waiting()
        if self._is_draining:
            self._check_drained()
        if shared.round_begun_s is not None:
            took_s = self._now() - shared.round_begun_s
            shared.round_begun_s = None
            if took_s > self._options.slow_round_s:
                shared.counters.slow_rounds += 1
                log.warning(
                    "event=slow_round took_s=%.3f connections=%d flushed=%d",
                    took_s,
                    len(self._sessions),
                    len(dirty),
                )
        return now_s if shared.wants_round else None

    def _relieve(self, backlog: Backlog[SlowReader]) -> None:
        """Closes connections that read too slowly, until unread answers fit again."""
        is_contested = self._shared.is_contested
        while (reader := backlog.excess(self._now(), is_contested)) is not None:
            reader.cut_off_reader()

    def _look_at_waiting(self) -> None:
        """Begins requests that waited for unread answers in the next round, if possible."""
        shared = self._shared
        shared.forget_ended()
        if shared.waiting:
            self._look_at_scarcity()
        if any(each.may_begin for each in shared.waiting):
            self._loop.post(self._begin_waiting)

    def _begin_waiting(self) -> None:
        """Begins requests that waited for unread answers, one of each connection."""
        waiting = list(self._shared.waiting)
        self._num_turns += 1
        for session in waiting if self._num_turns & 1 else reversed(waiting):
            session.begin_waiting()

    def _next_favoured(self) -> StarvedSession | None:
        """Returns the session that may finish an upload next.

        It is, in turn, the one that has waited longest, the one that came last and was
        not favoured yet, and one that finished an upload before. A crowd that came
        earlier and holds on to what it got must not keep the others out. So a few
        waiting clients at a time are granted next to nothing, to see whether they go on,
        and one that does is next.
        """
        wanting = [each for each in self._shared.starved if each.wants_favour]
        wanting = [each for each in wanting if each.can_be_answered] or wanting
        if len(wanting) < 2:
            return wanting[0] if wanting else None
        now_s = self._now()
        budget = self._shared.budget
        may_probe = 2 * budget.free_bytes >= budget.limit_bytes
        lately_s = now_s - _RESPONSIVE_S if may_probe else -inf
        ready: list[StarvedSession] = []
        num_probed = 0
        newest = _newcomer(wanting) or wanting[-1]
        wanting.remove(newest)
        wanting.sort(key=lambda each: each.num_uploads == 0)
        for each in (newest, *wanting):
            if not each.is_responsive:
                num_probed += 1
            elif each.probed_s >= lately_s:
                ready.append(each)
            elif num_probed < _PROBED_AT_ONCE:
                each.probe()
                num_probed += 1
        if not ready:
            return None
        self._num_turns += 1
        turn = self._num_turns % 3
        if turn == 0:  # the longest waiting of those who finished one, if there are any
            order = [each for each in ready if each is not newest] or ready
        elif turn == 1:
            order = ready
        else:
            order = [each for each in self._shared.starved if each in ready]
        others = (each for each in order if each is not self._had_turn)
        self._had_turn = next(others, order[0])
        return self._had_turn

    def _ask_newcomer(self, now_s: float) -> None:
        """Has who came last show that it goes on before its turn is there."""
        newcomer = _newcomer(
            [each for each in self._shared.starved if each.wants_favour]
        )
        if (
            newcomer is not None
            and newcomer is not self._shared.favoured
            and newcomer.is_responsive
            and newcomer.probed_s < now_s - _RESPONSIVE_S / 2
        ):
            newcomer.probe()

    def _feed_starved(self) -> None:
        """Grants what the budget has, and its reserve to one session at a time."""
        shared = self._shared
        favoured = shared.favoured
        is_stalled = (
            favoured is not None
            and favoured.is_stalled
            and any(
                each.wants_favour for each in shared.starved if each is not favoured
            )
        )
        if favoured is not None and is_stalled:
            favoured.give_up_uploads()
        if favoured is not None and (
            is_stalled
            or not favoured.keeps_favour
            or favoured.num_uploads != shared.num_favoured_uploads
        ):
            # It has finished what it was favoured for: the others first.
            favoured.favour(False)
            if favoured in shared.starved:
                del shared.starved[favoured]
                shared.starved[favoured] = None
            favoured = shared.favoured = None
        if favoured is None:
            favoured = self._next_favoured()
            if favoured is not None:
                favoured.favour(True)
                shared.favoured = favoured
                shared.num_favoured_uploads = favoured.num_uploads
        self._look_at_scarcity()
        if shared.budget.free_to_favoured_bytes >= _MIN_GRANT_BYTES:
            for session in list(shared.starved):
                session.refill()

    def _look_at_scarcity(self) -> None:
        """Has memory come and go as long as requests wait for it."""
        shared = self._shared
        is_scarce = shared.buffers.is_scarce = len(shared.starved) > _FEW_STARVED
        if is_scarce or shared.waiting or shared.is_contested:
            now_s = self._now()
            if now_s - self._scarce_at_s >= _SCARCITY_INTERVAL_S:
                self._scarce_at_s = now_s
                self._on_scarcity()

    def _sweep_later(self) -> None:
        self._loop.call_at(self._now() + self._options.sweep_interval_s, self._sweep)

    def _sweep(self) -> None:
        # What is free is not returned yet, and should not be while more comes.
        had_unread = self._had_unread
        self._had_unread = self._shared.headroom.unread_bytes >= _LARGE_BYTES
        if self._shared.buffers.sweep() or had_unread or self._had_unread:
            self._shared.on_large_message()
        if not self._num_connections:
            self._shared.buffers.clear()
            self._is_sweeping = False  # an idle server sleeps
            return
        now_s = self._now()
        shared = self._shared
        shared.turns.look(now_s)
        shared.answer_sizes.sweep(now_s)
        shared.is_contested = (
            bool(shared.waiting) and shared.headroom.is_tight
        ) or any(each.wants_favour for each in shared.starved)
        self._look_at_scarcity()
        self._ask_newcomer(now_s)
        shared.headroom.look(
            shared.is_contested,
            shared.counters.timeouts,
            shared.budget.granted_bytes,
        )
        self._relieve(shared.backlog)
        for handshake in list(self._handshakes):
            if now_s - handshake.opened_s > self._options.handshake_timeout_s:
                self._shared.counters.timeouts += 1
                handshake.close()
        self._sweep_sessions(iter(list(self._sessions)))

    def _sweep_sessions(self, sessions: Iterator[Session]) -> None:
        """Sweeps sessions, and the rest of them in the next rounds."""
        if self._is_closed:
            return
        now_s = self._now()
        num_swept = 0
        for session in sessions:
            if session.is_closed:
                continue
            num_swept += 1 + len(session.connection.streams)
            try:
                session.sweep(now_s)
            except Exception as error:
                session.on_failure(error)
            if num_swept >= _SWEPT_PER_ROUND:
                self._loop.post(partial(self._sweep_sessions, sessions))
                return
        self._sweep_later()

    # -- the end -----------------------------------------------------------------------

    def _begin_drain(self) -> None:
        if self._is_draining or self._is_closed:
            return
        self._is_draining = True
        self._close_listeners()
        self._close_handshakes()
        for session in list(self._sessions):
            session.connection.begin_drain()
            session.mark_dirty()
        self._loop.call_at(
            self._now() + self._options.drain_grace_s, self._finish_drain
        )

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
            for listening in listener.sockets:
                self._loop.unwatch(listening.fileno())
            listener.close()

    def _close_handshakes(self) -> None:
        for handshake in list(self._handshakes):
            handshake.close()

    def _close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._close_listeners()
        self._close_handshakes()
        for session in list(self._sessions):
            session.close()
        self._shared.deadlines.close()
        self._loop.remove_round_hook(self._hand_over)
        self._loop.remove_round_hook(self._flush)
        if self._own_executor:
            self._shared.executor.close(self._now())
            self._tls_executor.close(self._now())
        with self._changed:
            self._is_drained = True
            self._changed.notify_all()


def _newcomer(sessions: Sequence[StarvedSession]) -> StarvedSession | None:
    """Returns who came last of those that were not favoured yet."""
    return next((each for each in reversed(sessions) if not each.had_favour), None)
