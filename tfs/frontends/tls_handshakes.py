"""The TLS handshakes of one transport that are under way, bounded in number and time."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

from tfs.core.call import Peer
from tfs.core.executor import Executor
from tfs.core.loop.serving_loop import HANG_UP, READABLE, WRITABLE, ServingLoop
from tfs.frontends.budget import MemoryBudget
from tfs.frontends.counters import Counters
from tfs.frontends.tls_context import H2, HTTP_1, TlsContexts

Receiver: TypeAlias = Callable[[ssl.SSLSocket, Peer], object]
"""Takes over a client's socket after its handshake. The peer has the names in the client's
certificate."""


class Handshakes:
    """Handshakes, the oldest first. Confined to the loop.

    A crowd of slow ones keeps nobody out: the oldest that waits for its client makes
    way for another one.

    Attributes:
        under_way: Those that are not over.

    Args:
        loop: The loop on which sockets are watched.
        budget: Counts what they take.
        executor: Does the cryptography.
        max_handshakes: Most handshakes at the same time.
        timeout_s: How long one may take.
        counters: Counts those that failed, and those of them that took too long.

    """

    def __init__(
        self,
        loop: ServingLoop,
        budget: MemoryBudget,
        executor: Executor,
        max_handshakes: int,
        timeout_s: float,
        counters: Counters,
    ) -> None:
        self._loop = loop
        self._budget = budget
        self._executor = executor
        self._max_handshakes = max_handshakes
        self._timeout_s = timeout_s
        self._counters = counters
        self.under_way: dict[TlsHandshake, None] = {}

    def begin(
        self,
        contexts: TlsContexts,
        client: socket.socket,
        peer: Peer,
        on_done: Receiver,
    ) -> bool:
        """Begins a handshake; returns False if there are too many.

        The client's socket is closed then.
        """
        if len(self.under_way) >= self._max_handshakes:
            slow = (each for each in self.under_way if not each.is_busy)
            oldest = next(slow, None)
            if oldest is None:
                client.close()
                return False
            oldest.close()
        handshake = TlsHandshake(
            self._loop,
            self._budget,
            self._executor,
            contexts,
            client,
            peer,
            partial(self._end, on_done),
        )
        self.under_way[handshake] = None
        return True

    def sweep(self, now_s: float) -> None:
        """Gives up handshakes that take too long."""
        for handshake in list(self.under_way):
            if now_s - handshake.opened_s > self._timeout_s:
                self._counters.timeouts += 1
                handshake.close()

    def close(self) -> None:
        """Gives all of them up; idempotent."""
        for handshake in list(self.under_way):
            handshake.close()

    def _end(
        self, on_done: Receiver, handshake: TlsHandshake, tls: ssl.SSLSocket | None
    ) -> None:
        del self.under_way[handshake]
        if tls is None:
            self._counters.failed_handshakes += 1
        else:
            on_done(tls, handshake.peer)


log = logging.getLogger(__name__)

_READ_BYTES: Final = 16_384
_OPENSSL_BYTES: Final = 24_576  # that OpenSSL takes for a handshake

_RECORD: Final = b"\x16"  # what a handshake begins with
_SPOKEN: Final = {H2: b"gRPC over HTTP/2 within TLS", HTTP_1: b"HTTPS"}


class TlsHandshake:
    """One connection's handshake. Confined to the loop.

    Attributes:
        peer: The peer, with the names in its certificate once it is known.
        opened_s: When it was accepted.
        is_busy: Whether it waits for the executor, not for its client.

    Args:
        on_end: Takes the handshake and the encrypted socket when it is complete; or None
            for that when it has failed.

    """

    def __init__(
        self,
        loop: ServingLoop,
        budget: MemoryBudget,
        executor: Executor,
        contexts: TlsContexts,
        client: socket.socket,
        peer: Peer,
        on_end: Callable[[TlsHandshake, ssl.SSLSocket | None], None],
    ) -> None:
        self._loop = loop
        self._budget = budget
        self._held_bytes = 0
        self._executor = executor
        self._contexts = contexts
        self._on_end = on_end
        self._client = client
        self._tls: ssl.SSLSocket | None = None  # made when the client sends
        self._is_closed = False
        self.peer = peer
        self.opened_s = loop.clock.now()
        self.is_busy = False
        loop.watch(client.fileno(), self.on_ready)

    def on_ready(self, events: int) -> None:
        """Has the executor take the next step."""
        if events & HANG_UP:
            self.close()
            return
        if self._tls is None:
            try:
                begin = self._client.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                return
            except OSError:
                begin = b""
            if begin and begin != _RECORD:
                self._refuse_plain()
                return
            if not begin or not self._budget.has_room(_OPENSSL_BYTES):
                self.close()
                return
            if not self._held_bytes:
                self._held_bytes = _OPENSSL_BYTES
                self._budget.used_bytes += _OPENSSL_BYTES
        self._loop.unwatch(self._socket.fileno())
        self.is_busy = True
        try:
            self._executor.submit(self._step)
        except RuntimeError:  # the executor is closed, and this will be soon
            self.is_busy = False
            self.close()

    def close(self) -> None:
        """Gives up the handshake; idempotent, and without effect after ``on_end``."""
        if self._is_closed:
            return
        self._is_closed = True
        self._release()
        if not self.is_busy:  # otherwise the executor has the socket
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
        self._on_end(self, None)

    def __del__(self) -> None:
        if self.is_busy:  # the loop has ended before it was told of the last step
            self._socket.close()

    @property
    def _socket(self) -> socket.socket:
        return self._client if self._tls is None else self._tls

    def _release(self) -> None:
        held_bytes, self._held_bytes = self._held_bytes, 0
        self._budget.release(held_bytes)

    def _step(self) -> None:
        # On the executor's thread; the loop does not use the socket meanwhile.
        outcome: int | tuple[str, ...] | Exception
        if self._is_closed:
            self._socket.close()
            return
        try:
            contexts = self._contexts
            if self._tls is None:
                self._tls = contexts.current().wrap_socket(
                    self._client, server_side=True, do_handshake_on_connect=False
                )
            self._tls.do_handshake()
            if contexts.protocol == H2 and self._tls.selected_alpn_protocol() != H2:
                raise ssl.SSLError("the client does not offer h2 (ALPN)")
            outcome = peer_names(self._tls)
        except ssl.SSLWantReadError:
            outcome = READABLE
        except ssl.SSLWantWriteError:
            outcome = WRITABLE
        except Exception as error:
            outcome = error
        self._loop.post(partial(self._on_step, outcome))

    def _on_step(self, outcome: int | tuple[str, ...] | Exception) -> None:
        self.is_busy = False
        tls = self._tls
        if self._is_closed:
            self._socket.close()
        elif isinstance(outcome, int):
            self._loop.watch(self._socket.fileno(), self.on_ready, outcome)
        elif isinstance(outcome, Exception):
            level = logging.DEBUG if isinstance(outcome, OSError) else logging.ERROR
            log.log(
                level,
                "event=tls_handshake_failed peer=%s error=%r",
                self.peer.address,
                str(outcome),
            )
            self.close()
        else:
            self._is_closed = True
            self._release()
            self.peer = replace(self.peer, identity=outcome)
            self._on_end(self, tls)

    def _refuse_plain(self) -> None:
        """Lets go of a client without TLS: one of HTTP/1 is answered, any other just ends.

        A gRPC client gets no answer. It then reports "Socket closed" and retries at growing
        intervals, as with grpcio's servers. After SETTINGS and GOAWAY, which are HTTP/2's
        way to refuse, grpcio reconnects at once, 300 times a second, and reports no reason.
        """
        client = self._client
        with contextlib.suppress(OSError):
            method, _, rest = client.recv(_READ_BYTES)[:16].partition(b" ")
            if rest and method.isalpha() and method.isupper() and method != b"PRI":
                body = b"this port speaks %s.\n" % _SPOKEN[self._contexts.protocol]
                client.send(
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
                    "this listener takes TLS only; the client, which sees a closed "
                    "socket, needs a secure channel",
                )
        self.close()


def peer_names(tls: ssl.SSLSocket) -> tuple[str, ...]:
    """Returns the names in the client's verified certificate; empty only without one.

    These are its alternative names. Without these it is its common name, as in
    grpcio; without that its whole subject, or its serial number, because a client
    without a name is verified too.
    """
    certificate: Any = tls.getpeercert()  # nested tuples of names
    if not certificate:
        return ()
    alternative = certificate.get("subjectAltName", ())
    if alternative:
        return tuple(str(value) for _, value in alternative)
    subject = [pair for part in certificate["subject"] for pair in part]
    common = [str(value) for key, value in subject if key == "commonName"]
    others = [f"{key}={value}" for key, value in subject]
    return tuple(common or others or [f"serial={certificate['serialNumber']}"])
