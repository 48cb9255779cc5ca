"""Listens for HTTP/1.1 clients, on the serving loop."""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Sequence
from functools import partial
from typing import Final

from tfs.core.call import ListenerOptions, Peer
from tfs.core.executor import Executor, InlineExecutor
from tfs.core.http_call import HttpHandler
from tfs.core.serving_loop import ServingLoop
from tfs.frontends.budget import MemoryBudget
from tfs.frontends.http1.options import HttpOptions
from tfs.frontends.http1.session import HttpSession, draining
from tfs.frontends.listener import Listener
from tfs.frontends.tls.handshakes import Handshakes
from tfs.frontends.tls.tls_stream import TlsStream
from tfs.frontends.wire import TlsWire, Wire

log = logging.getLogger(__name__)

_ACCEPTS_PER_ROUND: Final = 64
_ACCEPT_PAUSE_S: Final = 1.0
_MAX_HANDSHAKES: Final = 256
_OUT_OF_FILES: Final = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
)


class HttpTransport:
    """HTTP/1.1 on some listeners. ``start`` and the rest run off the loop.

    Args:
        loop: The serving loop.
        budget: What all clients together may take; shared with other transports.
        options: Limits.
        executor: Performs TLS handshakes.

    """

    def __init__(
        self,
        loop: ServingLoop,
        budget: MemoryBudget,
        options: HttpOptions | None = None,
        executor: Executor | None = None,
    ) -> None:
        self._loop = loop
        self._budget = budget
        self._options = options or HttpOptions()
        self._listeners: list[Listener] = []
        self._sessions: set[HttpSession] = set()
        self._handshakes = Handshakes(
            loop,
            executor or InlineExecutor(),
            _MAX_HANDSHAKES,
            self._options.no_progress_timeout_s,
        )
        self._handler: HttpHandler = _nobody
        self._is_sweeping = False
        self._is_closed = False
        self._is_draining = False
        # Guards _is_drained; leaf.
        self._changed = threading.Condition()
        self._is_drained = False

    @property
    def num_connections(self) -> int:
        """Clients that are connected. Thread-safe."""
        return len(self._sessions) + len(self._handshakes.under_way)

    def start(
        self, listeners: Sequence[ListenerOptions], handler: HttpHandler
    ) -> Sequence[str]:
        """Opens the listeners; returns their addresses with the real ports.

        Raises:
            Unavailable: An address is in use or cannot be bound; nothing is open.

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
        self._listeners = opened
        self._handler = handler
        self._loop.post(self._begin)
        return [listener.address for listener in opened]

    def drain(self, deadline_s: float) -> bool:
        """Takes no new requests; blocks until those taken are answered.

        Returns whether all were by the (monotonic) deadline.
        """
        self._loop.post(self._begin_drain)
        clock = self._loop.clock
        with self._changed:
            while not self._is_drained and clock.now() < deadline_s:
                clock.wait(self._changed, deadline_s)
            return self._is_drained

    def close(self) -> None:
        """Closes every connection and listener; idempotent."""
        if self._loop.is_loop_thread:
            self._close()
            return
        closed = threading.Event()

        def close() -> None:
            self._close()
            closed.set()

        self._loop.post(close)
        closed.wait(_ACCEPT_PAUSE_S * 10)

    # -- on the loop -------------------------------------------------------------------

    def _begin(self) -> None:
        for listener in self._listeners:
            for listening in listener.sockets:
                self._watch(listener, listening)

    def _watch(self, listener: Listener, listening: socket.socket) -> None:
        if listener in self._listeners and not self._is_draining:
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
                continue  # the client left first
            if self.num_connections >= self._options.max_connections:
                client.close()
                continue
            if listener.tls is None:
                self._open(Wire(client), peer)
            else:
                self._handshakes.begin(listener.tls, client, peer, self._on_trusted)
        if not self._is_sweeping:
            self._is_sweeping = True
            self._sweep_later()

    def _on_trusted(
        self, client: socket.socket, peer: Peer, tls: TlsStream, unsent: bytes
    ) -> None:
        session = self._open(TlsWire(client, tls, unsent), peer)
        if self._is_draining:
            session.begin_drain()
        session.begin()

    def _open(self, wire: Wire, peer: Peer) -> HttpSession:
        session = HttpSession(
            wire,
            peer,
            self._loop,
            self._options,
            self._budget,
            self._handler,
            self._on_closed,
        )
        self._sessions.add(session)
        return session

    def _pause(
        self, listener: Listener, listening: socket.socket, error: OSError
    ) -> None:
        """Stops accepting on a listener for a while, because it cannot succeed now."""
        log.error(
            "event=accept_failed listener=%s error=%s", listener.options.name, error
        )
        self._loop.unwatch(listening.fileno())
        self._loop.call_at(
            self._loop.clock.now() + _ACCEPT_PAUSE_S,
            partial(self._watch, listener, listening),
        )

    def _on_closed(self, session: HttpSession) -> None:
        self._sessions.discard(session)
        self._check_drained()

    def _sweep_later(self) -> None:
        when_s = self._loop.clock.now() + self._options.sweep_interval_s
        self._loop.call_at(when_s, self._sweep)

    def _sweep(self) -> None:
        now_s = self._loop.clock.now()
        for session in list(self._sessions):
            session.sweep(now_s)
        self._handshakes.sweep(now_s)
        self._is_sweeping = bool(self.num_connections)  # so that an idle server sleeps
        if self._is_sweeping:
            self._sweep_later()

    def _begin_drain(self) -> None:
        if self._is_draining or self._is_closed:
            return
        self._is_draining = True
        self._close_listeners()
        self._handshakes.close()
        for session in list(self._sessions):
            session.begin_drain()
        self._check_drained()

    def _check_drained(self) -> None:
        if self._is_draining and not self._sessions and not self._is_drained:
            with self._changed:
                self._is_drained = True
                self._changed.notify_all()

    def _close_listeners(self) -> None:
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            for listening in listener.sockets:
                self._loop.unwatch(listening.fileno())
            listener.close()

    def _close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = self._is_draining = True
        self._close_listeners()
        self._handshakes.close()
        for session in list(self._sessions):
            session.fail_all(draining())
            session.close()
        self._check_drained()


def _nobody(call: object) -> None:
    """Stands for the handler until ``start``."""
