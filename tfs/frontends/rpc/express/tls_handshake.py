"""An accepted socket until its TLS handshake is over.

Only then is there a session: who never finishes a handshake holds no receive window,
no header cache and no place among the calls. The arithmetic runs on an executor, one
step at a time and connection, and the serving loop only moves the bytes.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from tfs.core.call import Peer
from tfs.core.executor import Executor
from tfs.core.serving_loop import HANG_UP, READABLE, WRITABLE, ServingLoop
from tfs.frontends.rpc.express.http2.frames import PREFACE
from tfs.frontends.rpc.express.http2.response import PLAIN_HTTP_ANSWER
from tfs.frontends.rpc.express.tls_contexts import TlsContexts
from tfs.frontends.rpc.express.tls_stream import TlsFault, TlsStream

log = logging.getLogger(__name__)

_READ_BYTES: Final = 16_384


class TlsHandshake:
    """One connection's handshake. Confined to the serving loop.

    Attributes:
        client: The socket; whoever takes it over in ``on_done`` closes it.
        peer: Who it seems to be, before it has shown a certificate.
        opened_s: When it was accepted.
        is_busy: Whether it waits for us and not for its client.
        is_plain_grpc: Whether it was closed because its client speaks gRPC without TLS.
        unsent: The last bytes of the handshake, which the kernel did not take yet.

    Args:
        on_done: Takes the handshake and its stream when it is complete.
        on_closed: Is told when it failed; the socket is closed.

    """

    __slots__ = (
        "_contexts",
        "_executor",
        "_is_closed",
        "_loop",
        "_on_closed",
        "_on_done",
        "_stream",
        "client",
        "is_busy",
        "is_plain_grpc",
        "opened_s",
        "peer",
        "unsent",
    )

    def __init__(
        self,
        loop: ServingLoop,
        executor: Executor,
        contexts: TlsContexts,
        client: socket.socket,
        peer: Peer,
        on_done: Callable[[TlsHandshake, TlsStream], None],
        on_closed: Callable[[TlsHandshake], None],
    ) -> None:
        self._loop = loop
        self._executor = executor
        self._contexts = contexts
        self._on_done = on_done
        self._on_closed = on_closed
        self._stream: TlsStream | None = None  # made when the client has spoken
        self._is_closed = False
        self.client = client
        self.peer = peer
        self.opened_s = loop.clock.now()
        self.is_busy = False
        self.is_plain_grpc = False
        self.unsent = b""
        loop.watch(client.fileno(), self.on_ready)

    def on_ready(self, events: int) -> None:
        """Takes what the client sent to the executor."""
        if events & HANG_UP:
            self.close()
            return
        if events & WRITABLE and self.unsent:
            self._send(b"")
            if self._is_closed:
                return
            self._watch()
        if not events & READABLE:
            return
        try:
            data = self.client.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        if self._stream is None and _is_plain_http(data):
            self._send(PLAIN_HTTP_ANSWER)
            self.close()
            return
        if self._stream is None and PREFACE.startswith(data[: len(PREFACE)]):
            self.is_plain_grpc = True
            self.close()
            return
        # Its next bytes wait in the kernel until these are done with.
        self._loop.unwatch(self.client.fileno())
        self.is_busy = True
        try:
            self._executor.submit(partial(self._step, data))
        except RuntimeError:  # closed: so are we, soon
            self.close()

    def close(self) -> None:
        """Gives up; idempotent, and nothing after ``on_done``."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.unwatch(self.client.fileno())
        self.client.close()
        self._on_closed(self)

    def _step(self, data: bytes) -> None:
        # On the executor's thread; the loop leaves the stream alone meanwhile.
        outcome: bool | Exception
        output = b""
        try:
            if self._stream is None:
                self._stream = TlsStream(self._contexts.current())
            try:
                outcome = self._stream.handshake(data)
            finally:
                output = self._stream.take_output()
        except Exception as error:
            outcome = error
        self._loop.post(partial(self._on_step, outcome, output))

    def _on_step(self, outcome: bool | Exception, output: bytes) -> None:
        if self._is_closed:
            return
        self.is_busy = False
        if output:
            self._send(output)
        if self._is_closed:
            return
        if isinstance(outcome, Exception):
            level = logging.DEBUG if isinstance(outcome, TlsFault) else logging.ERROR
            log.log(
                level,
                "event=tls_handshake_failed peer=%s error=%r",
                self.peer.address,
                str(outcome),
            )
            self.close()
        elif outcome:
            self._is_closed = True
            assert self._stream is not None
            self._on_done(self, self._stream)
        else:
            self._watch()

    def _watch(self) -> None:
        events = READABLE | WRITABLE if self.unsent else READABLE
        self._loop.watch(self.client.fileno(), self.on_ready, events)

    def _send(self, output: bytes) -> None:
        self.unsent += output
        try:
            sent = self.client.send(self.unsent)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        self.unsent = self.unsent[sent:]


def _is_plain_http(data: bytes) -> bool:
    """Tells whether a client speaks HTTP/1 in plain text, whom an alert tells nothing.

    A gRPC client in plain text is not answered: it says "Socket closed" then, and tries
    again ever later, as with grpcio's servers. A line of HTTP/1, or a GOAWAY by itself,
    it takes for another protocol; after SETTINGS and GOAWAY, which are what HTTP/2 has
    for this, grpcio connects again at once, 300 times a second, and tells nobody why.
    """
    method, blank, _ = data[:16].partition(b" ")
    return bool(blank) and method.isalpha() and method.isupper() and method != b"PRI"
