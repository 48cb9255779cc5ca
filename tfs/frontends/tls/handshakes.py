"""The TLS handshakes of one transport that are under way, bounded in number and time."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from tfs.core.call import Peer
from tfs.core.executor import Executor
from tfs.core.loop.serving_loop import ServingLoop
from tfs.frontends.budget import MemoryBudget
from tfs.frontends.tls.tls_context import TlsContexts
from tfs.frontends.tls.tls_handshake import TlsHandshake
from tfs.frontends.tls.tls_stream import TlsStream

log = logging.getLogger(__name__)

_MAX_PLAIN_HOSTS: Final = 1024

Receiver: TypeAlias = Callable[[socket.socket, Peer, TlsStream, bytes], object]
"""Takes over a client's socket after its handshake, with what the kernel has not taken
of it yet. The peer has the names in the client's certificate."""


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
        on_failed: Called when one has failed and its socket is closed.

    """

    def __init__(
        self,
        loop: ServingLoop,
        budget: MemoryBudget,
        executor: Executor,
        max_handshakes: int,
        timeout_s: float,
        on_failed: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = loop
        self._budget = budget
        self._executor = executor
        self._max_handshakes = max_handshakes
        self._timeout_s = timeout_s
        self._on_failed = on_failed
        self._plain_hosts: set[str] = set()  # hosts whose clients used no TLS
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
            partial(self._finish, on_done),
            self._note_failed,
        )
        self.under_way[handshake] = None
        return True

    def sweep(self, now_s: float) -> int:
        """Gives up handshakes that take too long; returns how many."""
        late = [
            each for each in self.under_way if now_s - each.opened_s > self._timeout_s
        ]
        for handshake in late:
            handshake.close()
        return len(late)

    def close(self) -> None:
        """Gives all of them up; idempotent."""
        for handshake in list(self.under_way):
            handshake.close()

    def _finish(
        self, on_done: Receiver, handshake: TlsHandshake, tls: TlsStream
    ) -> None:
        del self.under_way[handshake]
        peer = replace(handshake.peer, identity=tls.peer_names)
        on_done(handshake.client, peer, tls, handshake.unsent)

    def _note_failed(self, handshake: TlsHandshake) -> None:
        del self.under_way[handshake]
        self._on_failed()
        if handshake.is_plain_grpc:
            self._tell_of_plain_client(handshake.peer)

    def _tell_of_plain_client(self, peer: Peer) -> None:
        """Logs, once per host, that its client speaks gRPC without TLS."""
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
