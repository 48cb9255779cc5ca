"""An HTTP/1.1 transport on a loop of its own, and clients that send bytes."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any, Self

from tests.certificates import Certificates
from tfs.core.call import ListenerOptions
from tfs.core.http_call import HttpCall, HttpReply
from tfs.core.loop.serving_loop import ServingLoop
from tfs.frontends.budget import MemoryBudget
from tfs.frontends.http1.shared_state import HttpOptions
from tfs.frontends.http1.transport import HttpTransport
from tfs.testing.patience import PATIENCE_S


def echo(call: HttpCall) -> None:
    """Answers with the verb, the path and the body."""
    head = f"{call.verb} {call.path} ".encode()
    call.respond(HttpReply((head, bytes(call.message))))


class Rig:
    """A transport that runs; a context manager.

    Attributes:
        calls: The requests that a handler was given, if none answers them.

    """

    def __init__(
        self,
        handler: Callable[[HttpCall], None] | None = echo,
        limit_bytes: int = 64 << 20,
        certificates: Certificates | None = None,
        **options: Any,
    ) -> None:
        self._certificates = certificates
        self.calls: list[HttpCall] = []
        self.loop = ServingLoop()
        self.budget = MemoryBudget(limit_bytes, self.loop.post)
        self.transport = HttpTransport(self.loop, self.budget, HttpOptions(**options))
        self._handler = handler or self.calls.append
        self.port = 0

    def __enter__(self) -> Self:
        self.loop.start()
        tls = self._certificates.tls() if self._certificates else None
        listener = ListenerOptions("http", "127.0.0.1:0", tls=tls, protocol="http/1.1")
        (address,) = self.transport.start([listener], self._handler)
        self.port = int(address.rpartition(":")[2])
        return self

    def __exit__(self, *_: object) -> None:
        self.transport.close()
        self.loop.close(self.loop.clock.now() + PATIENCE_S)

    def client(self) -> RawClient:
        """Returns a new connection."""
        client = RawClient(self.port)
        if self._certificates is not None:
            context = ssl.create_default_context(
                cadata=self._certificates.authority.decode()
            )
            client.socket = context.wrap_socket(
                client.socket, server_hostname="localhost"
            )
        return client

    def ask(self, data: bytes) -> bytes:
        """Sends bytes over a new connection and returns all that comes until its end."""
        with self.client() as client:
            client.send(data)
            return client.read_all()


class RawClient:
    """A client that sends what it is told. A context manager."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._data = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Sends all of it, or as much as the server takes before it hangs up."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)

    def read_all(self) -> bytes:
        """Returns what comes until the server hangs up."""
        while True:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                return self._data
            self._data += data

    def read_answer(self) -> tuple[int, dict[str, str], bytes]:
        """Returns the status, the headers and the body of the next answer."""
        while b"\r\n\r\n" not in self._data:
            self._more()
        head, _, rest = self._data.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {
            name.lower(): value
            for name, _, value in (line.partition(": ") for line in lines)
        }
        length = int(headers.get("content-length", "0"))
        self._data = rest
        while len(self._data) < length:
            self._more()
        body, self._data = self._data[:length], self._data[length:]
        return int(first.split()[1]), headers, body

    def _more(self) -> None:
        data = self.socket.recv(1 << 16)
        assert data, "the server hung up"
        self._data += data
