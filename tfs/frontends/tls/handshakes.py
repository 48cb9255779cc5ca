"""The TLS handshakes of one transport that are under way, bounded in number and time."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from tfs.core.call import Peer
from tfs.core.executor import Executor
from tfs.core.loop.serving_loop import ServingLoop
from tfs.frontends.budget import MemoryBudget
from tfs.frontends.counters import Counters
from tfs.frontends.tls.tls_context import TlsContexts
from tfs.frontends.tls.tls_handshake import TlsHandshake

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
