"""The clients of one transport: taken in at its listeners, looked after, and let go of.

A client is accepted, shakes hands where its listener has TLS, and becomes a session of
the transport's protocol. Once a second each session ends what makes no progress. A drain
closes the listeners, and is over when the last session is gone and the last socket has
lingered.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import logging
import socket
import ssl
import termios
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import ClassVar, Final, Generic, Protocol, TypeVar

from tfs.core.call import ListenerOptions, Peer
from tfs.core.errors import InvalidArgument
from tfs.core.executor import Executor
from tfs.core.loop.serving_loop import HANG_UP, ServingLoop
from tfs.frontends.budget import MemoryBudget, Progress
from tfs.frontends.counters import Counters
from tfs.frontends.listener import Listener
from tfs.frontends.tls_handshakes import Handshakes
from tfs.frontends.wire import TlsWire, Wire

log = logging.getLogger(__name__)

_ACCEPTS_PER_ROUND: Final = 64
_ACCEPT_PAUSE_S: Final = 1.0
_CLOSE_TIMEOUT_S: Final = 5.0
_SWEEP_S: Final = 0.005  # in one round
_OUT_OF_FILES: Final = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
)


class Session(Protocol):
    """A client's connection, as its transport looks after it. Loop-confined."""

    @property
    def is_closed(self) -> bool:
        """Whether its socket is gone."""
        ...

    def begin(self) -> None:
        """Takes what came with the end of a TLS handshake; contains every exception."""
        ...

    def sweep(self, now_s: float) -> None:
        """Ends what has made no progress for too long."""
        ...

    def begin_drain(self) -> None:
        """Takes no calls beyond those that are there, and closes behind them."""
        ...

    def finish_drain(self) -> None:
        """Takes nothing more of a client that has had time to see that."""
        ...

    def on_failure(self, error: Exception) -> None:
        """Closes this connection, and no other, because our own code raised."""
        ...

    def close(self) -> None:
        """Closes the socket and cuts off every call; idempotent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Limits and timeouts that concern all clients of a transport. Immutable, checked.

    Attributes:
        max_connections: Most connections; further ones are closed at once.
        max_handshakes: Most TLS handshakes under way at the same time. For a further
            one, the oldest that waits for its client is given up.
        no_progress_timeout_s: What waits for its client for so long is ended.
        drain_grace_s: Time for a client to see that the server drains, by its next answer
            over HTTP/1.1. Requests that it sends later are ignored.
        sweep_interval_s: How often these timeouts are checked, and so how exact they
            are. Deadlines of calls are not among them.

    """

    MAY_BE_0: ClassVar[Collection[str]] = ()
    max_connections: int = 10_000
    max_handshakes: int = 1024
    no_progress_timeout_s: float = 10.0
    drain_grace_s: float = 1.0
    sweep_interval_s: float = 1.0

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if isinstance(value, int | float) and not (
                value > 0 or (value == 0 and option.name in self.MAY_BE_0)
            ):
                raise InvalidArgument(f"{option.name} must be positive; was {value}")


S = TypeVar("S", bound=Session)


class Clients(Generic[S]):
    """The listeners of one transport, and the sessions behind them.

    ``open``, ``drain`` and ``close`` are for any one thread but the loop's (``close`` for
    the loop's too). All else is confined to the serving loop.

    Attributes:
        counters: What happened since the start.
        handshakes: The TLS handshakes under way.
        is_closed: Whether ``close`` was called.
        is_drained: Whether all of them have gone since.
        is_draining: Whether no new clients are taken.
        lingering: Sockets of clients that still read what they were told last.
        sessions: The open ones.

    Args:
        loop: The serving loop.
        budget: The memory that clients can make the server take.
        options: How many clients there may be, and how long they may take.
        executor: Performs TLS handshakes.
        make: Makes the session of a client.
        on_sweep: Told before each sweep, and once more when the last client is gone.

    """

    def __init__(
        self,
        loop: ServingLoop,
        budget: MemoryBudget,
        options: ClientOptions,
        executor: Executor,
        make: Callable[[Wire, Peer, Listener], S],
        on_sweep: Callable[[], None] = lambda: None,
    ) -> None:
        self.counters = Counters()
        self.is_closed = False
        self.is_draining = False
        self.sessions: set[S] = set()
        self.lingering = LingeringSockets(
            loop, options.no_progress_timeout_s, self._check_drained
        )
        self._loop = loop
        self._options = options
        self._make = make
        self._on_sweep = on_sweep
        self._listeners: list[Listener] = []
        self._is_sweeping = False
        self.handshakes = Handshakes(
            loop,
            budget,
            executor,
            options.max_handshakes,
            options.no_progress_timeout_s,
            self.counters,
        )
        # Guards is_drained; leaf lock.
        self._changed = threading.Condition()
        self.is_drained = False

    @property
    def num_connections(self) -> int:
        """Sessions, handshakes, and sockets that linger."""
        return len(self.sessions) + len(self.handshakes.under_way) + len(self.lingering)

    # -- off the loop -------------------------------------------------------------------

    def open(self, listeners: Sequence[ListenerOptions]) -> list[str]:
        """Opens the listeners; returns their addresses with the real ports.

        Raises:
            Unavailable: An address is in use or cannot be bound, or certificates
                cannot be used; nothing is open.

        """
        opened: list[Listener] = []
        try:
            opened.extend(map(Listener, listeners))
        except BaseException:
            for listener in opened:
                listener.close()
            raise
        self._listeners = opened
        return [listener.address for listener in opened]

    def drain(self, deadline_s: float) -> bool:
        """Takes no new clients or calls, and blocks until every client has gone.

        Returns whether all had by the (monotonic) deadline.
        """
        self._loop.post(self.begin_drain)
        clock = self._loop.clock
        with self._changed:
            while not self.is_drained and clock.now() < deadline_s:
                clock.wait(self._changed, deadline_s)
            return self.is_drained

    def close(self, end: Callable[[], None]) -> None:
        """Closes every connection and listener, and then runs ``end``; idempotent."""
        if self.is_closed:
            return
        if not self._loop.is_loop_thread:
            closed = threading.Event()

            def close_on_loop() -> None:
                self._close(end)
                closed.set()

            self._loop.post(close_on_loop)
            if closed.wait(_CLOSE_TIMEOUT_S):
                return
        self._close(end)  # on the loop, or after it has ended

    # -- clients come -------------------------------------------------------------------

    def begin(self) -> None:
        """Takes clients in from now on."""
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
                continue  # the client left first (ECONNABORTED and the like)
            if self.num_connections >= self._options.max_connections:
                self.counters.refused_connections += 1
                client.close()
                continue
            self.counters.connections += 1
            if listener.tls is None:
                self.sessions.add(self._make(Wire(client), peer, listener))
                continue
            on_done = partial(self._on_trusted, listener)
            if not self.handshakes.begin(listener.tls, client, peer, on_done):
                self.counters.refused_connections += 1
        if not self._is_sweeping:
            self._is_sweeping = True
            self._sweep_later()

    def _on_trusted(
        self, listener: Listener, client: ssl.SSLSocket, peer: Peer
    ) -> None:
        session = self._make(TlsWire(client), peer, listener)
        self.sessions.add(session)
        session.begin()

    def _pause(
        self, listener: Listener, listening: socket.socket, error: OSError
    ) -> None:
        """Stops accepting on a listener for a while, because it cannot succeed now."""
        self.counters.failed_accepts += 1
        log.error(
            "event=accept_failed listener=%s num_failed=%d error=%s",
            listener.options.name,
            self.counters.failed_accepts,
            error,
        )
        self._loop.unwatch(listening.fileno())
        self._loop.call_at(
            self._loop.clock.now() + _ACCEPT_PAUSE_S,
            partial(self._watch, listener, listening),
        )

    # -- and are looked after ---------------------------------------------------------------

    def _sweep_later(self) -> None:
        self._loop.call_at(
            self._loop.clock.now() + self._options.sweep_interval_s, self._sweep
        )

    def _sweep(self) -> None:
        self._on_sweep()
        if not self.num_connections:
            self._is_sweeping = False  # so that an idle server sleeps
            return
        self.handshakes.sweep(self._loop.clock.now())
        self._sweep_sessions(iter(list(self.sessions)))

    def _sweep_sessions(self, sessions: Iterator[S]) -> None:
        """Sweeps sessions, and the rest of them in the next rounds."""
        if self.is_closed:
            return
        now_s = self._loop.clock.now()
        for session in sessions:
            if session.is_closed:
                continue
            try:
                session.sweep(now_s)
            except Exception as error:
                session.on_failure(error)
            if self._loop.clock.now() - now_s > _SWEEP_S:
                self._loop.post(partial(self._sweep_sessions, sessions))
                return
        self._sweep_later()

    # -- and go ---------------------------------------------------------------------------------

    def let_go(self, session: S, client: socket.socket, *, lingers: bool) -> None:
        """Closes the socket of a session that has ended, now or after it has lingered."""
        if lingers:
            self.lingering.take(client)
        else:
            client.close()
        self.sessions.discard(session)
        self._check_drained()

    def begin_drain(self) -> None:
        """Takes no new clients, and tells the others; idempotent."""
        if self.is_draining or self.is_closed:
            return
        self.is_draining = True
        self._close_listeners()
        for session in list(self.sessions):
            session.begin_drain()
        end_s = self._loop.clock.now() + self._options.drain_grace_s
        self._loop.call_at(end_s, self._finish_drain)
        self._check_drained()

    def _finish_drain(self) -> None:
        for session in list(self.sessions):
            session.finish_drain()

    def _check_drained(self) -> None:
        # Clients whose sockets linger may still be reading their answers.
        if self.is_draining and not (
            self.sessions or self.lingering or self.is_drained
        ):
            with self._changed:
                self.is_drained = True
                self._changed.notify_all()

    def _close_listeners(self) -> None:
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            for listening in listener.sockets:
                self._loop.unwatch(listening.fileno())
            listener.close()
        self.handshakes.close()

    def _close(self, end: Callable[[], None]) -> None:
        if self.is_closed:
            return
        self.is_closed = self.is_draining = True
        self._close_listeners()
        for session in list(self.sessions):
            session.close()
        self.lingering.close()
        end()
        self._check_drained()


_LOOK_S: Final = 1.0
_READ_BYTES: Final = 65_536


class LingeringSockets:
    """Sockets of clients that may still be reading what they were told last.

    If a socket is closed while its client still sends (it acknowledges what it reads),
    the kernel resets the connection, and what was not read yet is lost: a GOAWAY with
    the reason, or the end of an answer. So only the sending direction is closed at
    first, and whatever still arrives is read and dropped. The socket is closed once the
    client has closed it, or its system has taken everything, or makes no progress.
    Confined to the serving loop.

    Args:
        loop: The loop.
        no_progress_timeout_s: How long a client may take nothing.
        on_gone: Told of each that was closed.

    """

    def __init__(
        self,
        loop: ServingLoop,
        no_progress_timeout_s: float,
        on_gone: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = loop
        self._timeout_s = no_progress_timeout_s
        self._on_gone = on_gone
        self._sockets: set[socket.socket] = set()

    def __len__(self) -> int:
        return len(self._sockets)

    def take(self, client: socket.socket) -> None:
        """Takes over an unwatched socket, and closes it in time."""
        try:
            client.shutdown(socket.SHUT_WR)
        except OSError:  # the connection is gone already
            client.close()
            return
        self._sockets.add(client)
        self._loop.watch(client.fileno(), partial(self._on_ready, client))
        now_s = self._loop.clock.now()
        num_left = _num_untaken(client)
        look = partial(self._look, client, num_left, Progress(0, now_s))
        self._loop.call_at(now_s + _LOOK_S, look)

    def close(self) -> None:
        """Closes them all."""
        for client in list(self._sockets):
            self._let_go(client)

    def _on_ready(self, client: socket.socket, events: int) -> None:
        try:
            num_bytes = 0 if events & HANG_UP else len(client.recv(_READ_BYTES))
        except BlockingIOError:
            return
        except OSError:
            num_bytes = 0
        if not num_bytes:
            self._let_go(client)

    def _look(self, client: socket.socket, num_first: int, progress: Progress) -> None:
        if client not in self._sockets:
            return
        now_s = self._loop.clock.now()
        num_left = _num_untaken(client)
        stalled_s = progress.move(num_first - num_left, now_s)
        if not num_left or stalled_s > self._timeout_s:
            self._let_go(client)
        else:
            look = partial(self._look, client, num_first, progress)
            self._loop.call_at(now_s + _LOOK_S, look)

    def _let_go(self, client: socket.socket) -> None:
        if client in self._sockets:
            self._sockets.remove(client)
            self._loop.unwatch(client.fileno())
            client.close()
            self._on_gone()


def _num_untaken(connection: socket.socket) -> int:
    """Returns how much of what was sent the other side has not read, about."""
    queued = array.array("i", [0])
    with contextlib.suppress(OSError):
        fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, queued)
    return queued[0]
