"""A router's connection to a job: HTTP/2 on a socket, in plain text or over TLS."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tfs.core.errors import Unavailable
from tfs.core.loop.serving_loop import READABLE, WRITABLE, ServingLoop
from tfs.frontends.http2.client_connection import ClientConnection
from tfs.frontends.http2.frames import ConnectionFault
from tfs.frontends.http2.unary_request import UnaryRequest
from tfs.frontends.listener import UNIX
from tfs.frontends.wire import TlsWire, Wire

_PIECE_BYTES: Final = 262_144
_CONNECT_TIMEOUT_S: Final = 3.0
# How long bytes may wait for an acknowledgement: a network that is gone says nothing.
_SILENCE_MS: Final = 20_000


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Certificates for TLS to servers: paths of PEM files. Immutable."""

    ca: str
    cert: str = ""
    key: str = ""


def connect(address: str, tls: TlsFiles | None) -> Wire:
    """Connects to a server, at "host:port" or "unix:/path"; blocks for some seconds at most.

    Raises:
        OSError: It cannot be reached, does not speak TLS, or is not whom its certificate
            should name.
        ValueError: That is no name of a host.

    """
    is_unix = address.startswith(UNIX)
    if is_unix:
        host, plain = "localhost", socket.socket(socket.AF_UNIX)
    else:
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        plain = socket.create_connection((host, port), _CONNECT_TIMEOUT_S)
    try:
        if is_unix:
            plain.settimeout(_CONNECT_TIMEOUT_S)
            plain.connect(address.removeprefix(UNIX))
        else:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_MS)
        if tls is None:
            plain.setblocking(False)
            return Wire(plain)
        context = ssl.create_default_context(cafile=tls.ca)
        context.set_alpn_protocols(["h2"])
        if tls.cert:
            context.load_cert_chain(tls.cert, tls.key)
        secure = context.wrap_socket(plain, server_hostname=host)
        secure.setblocking(False)
        return TlsWire(secure)
    except BaseException:
        plain.close()
        raise


class JobConnection:
    """One connection, from when it is made until it is lost. Confined to the serving loop.

    Attributes:
        requests: The protocol's state.

    Args:
        loop: Watches the socket.
        wire: The socket, connected.
        requests: Has nothing sent yet.
        on_output: Called when there is something to write, so that ``flush`` is called
            at the end of the round.
        on_lost: Called once, when it is closed, by whoever, and with why: empty if it was
            leaving. After its requests are told.

    """

    def __init__(
        self,
        loop: ServingLoop,
        wire: Wire,
        requests: ClientConnection,
        on_output: Callable[[JobConnection], None],
        on_lost: Callable[[JobConnection, str], None],
    ) -> None:
        self.requests = requests
        self._loop = loop
        self._wire = wire
        self._on_output = on_output
        self._on_lost = on_lost
        self._watched = READABLE
        self._is_closed = False
        loop.watch(wire.socket.fileno(), self._on_ready)
        until_s = loop.clock.now() + _CONNECT_TIMEOUT_S
        self._opens_by = loop.call_at(until_s, self._check_open)
        on_output(self)

    def send(self, request: UnaryRequest) -> None:
        """Sends a request at the end of the round, or as soon as windows allow."""
        self.requests.begin(request)
        self._on_output(self)

    def give_up(self, request: UnaryRequest) -> None:
        """Tells the server that nobody waits for a request any more."""
        self.requests.give_up(request)
        self._on_output(self)

    def flush(self) -> bool:
        """Writes what is there; returns whether there is more that the socket would take."""
        if self._is_closed:
            return False
        wire, requests = self._wire, self.requests
        try:
            if not wire.unsent_bytes:
                requests.fill(_PIECE_BYTES)
            if requests.out:
                wire.send(requests.out)
        except OSError as error:
            self.close(str(error))
            return False
        events = READABLE | WRITABLE if wire.unsent_bytes else READABLE
        if events != self._watched:
            self._watched = events
            self._loop.watch(wire.socket.fileno(), self._on_ready, events)
        if requests.is_leaving and requests.is_idle:
            self.close("it is not needed any more")
        return not wire.unsent_bytes and requests.has_sendable

    def close(self, why: str) -> None:
        """Closes the socket, and ends what is under way with UNAVAILABLE; idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._opens_by.cancel()
        problem = "" if self.requests.is_leaving else why
        plain = self._wire.socket
        self._loop.unwatch(plain.fileno())
        self._wire.end()
        plain.close()
        error = f"the connection to {self.requests.address} was lost: {why}"
        self.requests.end(Unavailable(error))
        self._on_lost(self, problem)

    def _check_open(self) -> None:
        if not self.requests.is_open:
            self.close("it does not speak HTTP/2")

    def _on_ready(self, events: int) -> None:
        wire, requests = self._wire, self.requests
        try:
            if events & WRITABLE:
                wire.send_unsent()
            if events & ~WRITABLE:  # what was sent before a hang-up is there to read
                requests.receive(wire.read(_PIECE_BYTES))
        except BlockingIOError:
            pass
        except EOFError:
            self.close("the server closed it")
        except (OSError, ConnectionFault) as error:
            self.close(str(error))
        else:
            self._on_output(self)
