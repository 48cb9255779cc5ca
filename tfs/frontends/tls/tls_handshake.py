"""An accepted socket until its TLS handshake is over.

A session is made only then, so a client that never finishes its handshake holds no
receive window, no header cache and no calls. The cryptography runs on an executor, one
step per connection at a time, and the loop only moves the bytes.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from tfs.core.call import Peer
from tfs.core.executor import Executor
from tfs.core.loop.serving_loop import HANG_UP, READABLE, WRITABLE, ServingLoop
from tfs.frontends.budget import MemoryBudget
from tfs.frontends.tls.tls_context import H2, HTTP_1, TlsContexts
from tfs.frontends.tls.tls_stream import TlsFault, TlsStream

log = logging.getLogger(__name__)

_READ_BYTES: Final = 16_384

_STREAM_BYTES: Final = 20_480  # that OpenSSL takes for a connection, beside its buffers

_RECORD: Final = b"\x16"  # what a handshake begins with
_SPOKEN: Final = {H2: b"gRPC over HTTP/2 within TLS", HTTP_1: b"HTTPS"}


class TlsHandshake:
    """One connection's handshake. Confined to the loop.

    Attributes:
        client: The socket, which is not closed if the handshake was completed.
        peer: The peer, before its certificate is known.
        opened_s: When it was accepted.
        is_busy: Whether it waits for the executor, not for its client.
        unsent: The last bytes of the handshake that the kernel has not taken yet.

    Args:
        on_end: Takes the handshake and its stream when it is complete; or None for the
            stream when it has failed and the socket is closed.

    """

    __slots__ = (
        "_budget",
        "_contexts",
        "_executor",
        "_held_bytes",
        "_is_closed",
        "_loop",
        "_on_end",
        "_stream",
        "client",
        "is_busy",
        "opened_s",
        "peer",
        "unsent",
    )

    def __init__(
        self,
        loop: ServingLoop,
        budget: MemoryBudget,
        executor: Executor,
        contexts: TlsContexts,
        client: socket.socket,
        peer: Peer,
        on_end: Callable[[TlsHandshake, TlsStream | None], None],
    ) -> None:
        self._loop = loop
        self._budget = budget
        self._held_bytes = 0
        self._executor = executor
        self._contexts = contexts
        self._on_end = on_end
        self._stream: TlsStream | None = None  # made when the client sends
        self._is_closed = False
        self.client = client
        self.peer = peer
        self.opened_s = loop.clock.now()
        self.is_busy = False
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
        if self._stream is None and data[:1] != _RECORD:
            self._refuse_plain(data)
            return
        more_bytes = len(data) + (0 if self._held_bytes else _STREAM_BYTES)
        if not self._budget.has_room(more_bytes):
            self.close()
            return
        self._held_bytes += more_bytes
        self._budget.used_bytes += more_bytes
        # Further bytes wait in the kernel until these are processed.
        self._loop.unwatch(self.client.fileno())
        self.is_busy = True
        try:
            self._executor.submit(partial(self._step, data))
        except RuntimeError:  # the executor is closed, and this will be soon
            self.close()

    def close(self) -> None:
        """Gives up the handshake; idempotent, and without effect after ``on_done``."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.unwatch(self.client.fileno())
        self.client.close()
        self._release()
        self._on_end(self, None)

    def _release(self) -> None:
        held_bytes, self._held_bytes = self._held_bytes, 0
        self._budget.release(held_bytes)

    def _step(self, data: bytes) -> None:
        # Runs on the executor's thread; the loop does not use the stream meanwhile.
        outcome: bool | Exception
        output = b""
        try:
            if self._stream is None:
                contexts = self._contexts
                self._stream = TlsStream(contexts.current(), contexts.protocol)
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
            self._release()
            self._on_end(self, self._stream)
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

    def _refuse_plain(self, data: bytes) -> None:
        """Lets go of a client without TLS: one of HTTP/1 is answered, any other just ends.

        A gRPC client gets no answer. It then reports "Socket closed" and retries at growing
        intervals, as with grpcio's servers. After SETTINGS and GOAWAY, which are HTTP/2's
        way to refuse, grpcio reconnects at once, 300 times a second, and reports no reason.
        """
        method, blank, _ = data[:16].partition(b" ")
        if blank and method.isalpha() and method.isupper() and method != b"PRI":
            body = b"this port speaks %s.\n" % _SPOKEN[self._contexts.protocol]
            self._send(
                b"HTTP/1.1 400 Bad Request\r\n"
                b"content-type: text/plain; charset=utf-8\r\n"
                b"content-length: %d\r\n"
                b"connection: close\r\n"
                b"\r\n%s" % (len(body), body)
            )
        elif not self._contexts.saw_plain_client:
            self._contexts.saw_plain_client = True
            log.warning(
                "event=client_without_tls listener=%s peer=%s note=%r",
                self.peer.listener,
                self.peer.address,
                "this listener takes TLS only; the client, which sees a closed socket, "
                "needs a secure channel",
            )
        self.close()
