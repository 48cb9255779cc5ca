"""tfs.frontends.clients: how long sockets are kept whose clients may still be reading."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tfs.core.loop.serving_loop import ServingLoop
from tfs.frontends.clients import LingeringSockets
from tfs.testing.fake_clock import FakeClock

TIMEOUT_S = 10.0
PIECE_BYTES = 20_000


class Kept:
    """Sockets that linger, and their clients."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.loop = ServingLoop(self.clock, name="lingering")
        self.num_gone = 0
        self.sockets = LingeringSockets(self.loop, TIMEOUT_S, self._note_gone)
        self.client, self.server = socket.socketpair()
        self.server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.client.setblocking(False)
        self.server.setblocking(False)

    def take(self, num_bytes: int = 0) -> None:
        """Lets the socket linger, with an answer that was not read."""
        for _ in range(0, num_bytes, PIECE_BYTES):
            self.server.send(bytes(PIECE_BYTES))
        self.sockets.take(self.server)

    def wait(self, duration_s: float) -> None:
        self.clock.advance(duration_s)
        self.loop.step()

    @property
    def is_closed(self) -> bool:
        return self.server.fileno() == -1

    def _note_gone(self) -> None:
        self.num_gone += 1


@pytest.fixture
def kept() -> Iterator[Kept]:
    kept = Kept()
    yield kept
    kept.sockets.close()
    kept.client.close()
    kept.loop.close()
    assert kept.is_closed


def test_the_client_is_told_that_nothing_follows(kept: Kept) -> None:
    """What it sends meanwhile is taken; when it ends, that is all."""
    kept.take()
    assert kept.client.recv(1) == b""
    kept.client.send(b"more")
    kept.loop.step()
    assert not kept.is_closed
    kept.client.close()
    kept.loop.step()
    assert kept.is_closed
    assert kept.num_gone == 1


def test_who_has_everything_is_waited_for_a_second(kept: Kept) -> None:
    """A client that was told all and stays holds up no drain."""
    kept.take()
    kept.wait(0.9)
    assert not kept.is_closed
    kept.wait(0.2)
    assert kept.is_closed


def test_who_takes_nothing_is_waited_for_as_long_as_any(kept: Kept) -> None:
    """A client that has vanished ends by the one timeout."""
    kept.take(1000)
    for _ in range(int(TIMEOUT_S)):
        kept.wait(1.0)
        assert not kept.is_closed
    kept.wait(1.0)
    assert kept.is_closed


def test_who_reads_its_answer_is_waited_for(kept: Kept) -> None:
    """As long as it takes 64 KB every ten seconds."""
    kept.take(8 * PIECE_BYTES)
    for second in range(16):
        if second == 8:
            kept.client.recv(4 * PIECE_BYTES)
        kept.wait(1.0)
        assert not kept.is_closed, second
    kept.client.recv(4 * PIECE_BYTES)
    kept.wait(1.0)
    assert kept.is_closed
