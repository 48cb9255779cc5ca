"""tfs.frontends.lingering_sockets: how long they are kept."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tfs.core.serving_loop import ServingLoop
from tfs.frontends.lingering_sockets import LingeringSockets
from tfs.testing.fake_clock import FakeClock


class Kept:
    """A socket that lingers, and its client."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.loop = ServingLoop(self.clock, name="lingering")
        self.sockets = LingeringSockets(self.loop)
        self.client, self.server = socket.socketpair()
        self.client.setblocking(False)
        self.server.setblocking(False)
        self.sockets.take(self.server)

    @property
    def is_closed(self) -> bool:
        return self.server.fileno() == -1


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
    assert kept.client.recv(1) == b""
    kept.client.send(b"more")
    kept.loop.step()
    assert not kept.is_closed
    kept.client.close()
    kept.loop.step()
    assert kept.is_closed


def test_nobody_is_waited_for_longer_than_a_second(kept: Kept) -> None:
    """A client that was cut off is waited for during one second at most."""
    kept.clock.advance(0.9)
    kept.loop.step()
    assert not kept.is_closed
    kept.clock.advance(0.2)
    kept.loop.step()
    assert kept.is_closed


def test_who_reads_an_answer_is_waited_for(kept: Kept) -> None:
    """As long as it takes something every few seconds, for half a minute at most."""
    client, server = socket.socketpair()
    server.setblocking(False)
    with client, server:
        for _ in range(64):
            server.send(bytes(1_000))
        kept.sockets.take(server, has_answers=True)
        for second in range(32):
            assert (server.fileno() == -1) == (second >= 30)
            client.recv(1_000)
            kept.clock.advance(1.0)
            kept.loop.step()


@pytest.mark.parametrize(("num_bytes", "wait_s"), [(0, 1), (1_000, 5)])
def test_who_takes_nothing_is_waited_for_briefly(
    kept: Kept, num_bytes: int, wait_s: int
) -> None:
    """A client that has vanished, or that has all and stays, holds up no drain."""
    client, server = socket.socketpair()
    server.setblocking(False)
    with client, server:
        server.send(bytes(num_bytes))
        kept.sockets.take(server, has_answers=True)
        for second in range(wait_s):
            assert server.fileno() != -1, second
            kept.clock.advance(1.0)
            kept.loop.step()
        assert server.fileno() == -1


def test_nobody_is_listened_to_for_long(kept: Kept) -> None:
    """A flood goes on for a few megabytes."""
    num_sent = 0
    while not kept.is_closed:
        num_sent += kept.client.send(bytes(65_536))
        kept.loop.step()
        assert num_sent < 8 << 20
    assert num_sent >= 4 << 20


def test_a_crowd_is_let_go_of_at_once(kept: Kept) -> None:
    """Files are for those who behave."""
    pairs = [socket.socketpair() for _ in range(260)]
    for _, server in pairs:
        kept.sockets.take(server)
    assert sum(server.fileno() == -1 for _, server in pairs) == 5
    for client, _ in pairs:
        client.close()


def test_no_drained_client_is_one_too_many(kept: Kept) -> None:
    """A server that ends needs the files for no others."""
    kept.sockets.has_room = True
    pairs = [socket.socketpair() for _ in range(260)]
    for _, server in pairs:
        kept.sockets.take(server, has_answers=True)
    assert len(kept.sockets) == 261
    for client, _ in pairs:
        client.close()
