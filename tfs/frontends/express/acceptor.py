"""Takes clients in at every listener, those of TLS once their handshake is over."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from tfs.core.call import ListenerOptions, MethodTable, Peer
from tfs.core.executor import Executor
from tfs.frontends.express.session import Session
from tfs.frontends.express.shared_state import SharedState
from tfs.frontends.listener import Listener
from tfs.frontends.tls.handshakes import Handshakes
from tfs.frontends.tls.tls_stream import TlsStream
from tfs.frontends.wire import TlsWire, Wire

log = logging.getLogger(__name__)

_ACCEPTS_PER_ROUND: Final = 64
_ACCEPT_PAUSE_S: Final = 1.0
_OUT_OF_FILES: Final = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
)


class Acceptor:
    """The listeners and handshakes of one transport.

    ``open`` comes first and may be called on any thread. All else is confined to the
    serving loop.

    Attributes:
        handshakes: The handshakes under way.

    Args:
        shared: The state that all sessions share.
        executor: Performs TLS handshakes.
        sessions: The transport's sessions. New ones are added, closed ones removed.
        on_accepted: Told on the loop after clients were accepted or turned away.

    """

    def __init__(
        self,
        shared: SharedState,
        executor: Executor,
        sessions: set[Session],
        on_accepted: Callable[[], None],
    ) -> None:
        self._shared = shared
        self._loop = shared.loop
        self._sessions = sessions
        self._on_accepted = on_accepted
        self._listeners: list[Listener] = []
        self._methods: dict[Listener, MethodTable] = {}
        self.handshakes = Handshakes(
            shared.loop,
            executor,
            shared.options.max_handshakes,
            shared.options.no_progress_timeout_s,
            self._on_handshake_failed,
        )

    def open(
        self, listeners: Sequence[ListenerOptions], methods: MethodTable
    ) -> list[str]:
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
        return [listener.address for listener in opened]

    def begin(self) -> None:
        """Takes clients in from now on."""
        for listener in self._listeners:
            for listening in listener.sockets:
                self._watch(listener, listening)

    def sweep(self, now_s: float) -> None:
        """Gives up handshakes that take too long."""
        self._shared.counters.timeouts += self.handshakes.sweep(now_s)

    @property
    def num_connections(self) -> int:
        """Sessions and handshakes."""
        return len(self._sessions) + len(self.handshakes.under_way)

    def close(self) -> None:
        """Closes listeners and handshakes, but no sessions; idempotent."""
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            for listening in listener.sockets:
                self._loop.unwatch(listening.fileno())
            listener.close()
        self.handshakes.close()

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
                continue  # the client left first (ECONNABORTED and the like)
            if self.num_connections >= self._shared.options.max_connections:
                self._shared.counters.refused_connections += 1
                client.close()
                continue
            self._shared.counters.connections += 1
            methods = self._methods[listener]
            if listener.tls is not None:
                on_done = partial(self._on_trusted, methods)
                if not self.handshakes.begin(listener.tls, client, peer, on_done):
                    self._shared.counters.refused_connections += 1
                continue
            self._open(Wire(client), peer, methods)
        self._on_accepted()

    def _on_trusted(
        self,
        methods: MethodTable,
        client: socket.socket,
        peer: Peer,
        tls: TlsStream,
        unsent: bytes,
    ) -> None:
        self._open(TlsWire(client, tls, unsent), peer, methods).begin()

    def _open(self, wire: Wire, peer: Peer, methods: MethodTable) -> Session:
        sessions = self._sessions
        session = Session(self._shared, wire, peer, methods, sessions.discard)
        sessions.add(session)
        return session

    def _on_handshake_failed(self) -> None:
        self._shared.counters.failed_handshakes += 1

    def _pause(
        self, listener: Listener, listening: socket.socket, error: OSError
    ) -> None:
        """Stops accepting on a listener for a while, because it cannot succeed now."""
        counters = self._shared.counters
        counters.failed_accepts += 1
        log.error(
            "event=accept_failed listener=%s num_failed=%d error=%s",
            listener.options.name,
            counters.failed_accepts,
            error,
        )
        self._loop.unwatch(listening.fileno())
        self._loop.call_at(
            self._loop.clock.now() + _ACCEPT_PAUSE_S,
            partial(self._watch, listener, listening),
        )
