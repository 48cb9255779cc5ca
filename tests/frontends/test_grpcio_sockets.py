"""The connections of grpcio's clients are found, read of and shut down by their names."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfs.frontends.rpc.grpcio.sockets import Sockets


@contextlib.contextmanager
def connected(family: str, host: str) -> Iterator[tuple[str, socket.socket]]:
    """Yields what grpcio calls a client, and its socket; another is connected, too."""
    kind = socket.AF_INET if family == "ipv4" else socket.AF_INET6
    with socket.socket(kind) as listening, socket.socket(kind) as first:
        try:
            listening.bind((host, 0))
        except OSError:
            pytest.skip(f"this machine has no {host}")
        listening.listen()
        first.connect(listening.getsockname())
        with (
            socket.create_connection(listening.getsockname()[:2]) as second,
            listening.accept()[0],
            listening.accept()[0] as other,
        ):
            name = f"%5B{host}%5D" if family == "ipv6" else host
            yield f"{family}:{name}:{first.getsockname()[1]}", first
            second.setblocking(False)
            with pytest.raises(BlockingIOError):
                second.recv(1)
            assert other.fileno() >= 0


@pytest.mark.parametrize(("family", "host"), [("ipv4", "127.0.0.1"), ("ipv6", "::1")])
def test_a_connection_is_found_by_its_peer(family: str, host: str) -> None:
    """Its client reads the end; other connections, and other files, stay as they are."""
    sockets = Sockets()
    with connected(family, host) as (peer, client):
        num_files = len(os.listdir("/proc/self/fd"))
        assert sockets.disconnect(peer)
        assert sockets.num_disconnected == 1
        assert len(os.listdir("/proc/self/fd")) == num_files
        assert client.recv(1) == b""


def test_other_sockets_are_passed_over() -> None:
    """A socket whose address is made of numbers does not end the search."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW) as other:
        other.bind((0, 0))
        assert Sockets().traffic("ipv4:127.0.0.1:1") is None


def _link_local() -> tuple[str, int]:
    """Returns an address that holds for one interface, and that interface's number."""
    for line in Path("/proc/net/if_inet6").read_text().splitlines():
        digits, number = line.split()[:2]
        if digits.startswith("fe80"):
            packed = bytes.fromhex(digits)
            return socket.inet_ntop(socket.AF_INET6, packed), int(number, 16)
    pytest.skip("this machine has no interface with an address of its own")


def test_a_client_on_the_same_link_has_the_name_that_grpcio_gives_it() -> None:
    """What it sends counts as its own; otherwise it would seem to flood the server."""
    host, number = _link_local()
    sockets = Sockets()
    kind = socket.AF_INET6
    with socket.socket(kind) as listening, socket.socket(kind) as client:
        listening.bind((host, 0, 0, number))
        listening.listen()
        client.connect(listening.getsockname())
        with listening.accept()[0]:
            sockets.ports.add(listening.getsockname()[1])
            peer = f"ipv6:%5B{host}%25{number}%5D:{client.getsockname()[1]}"
            assert list(sockets.survey()) == [peer]
            assert sockets.traffic(peer) is not None
            assert sockets.disconnect(peer)


def test_what_went_over_a_connection_is_known() -> None:
    """Bytes that came are counted each time, also those that nobody has read yet."""
    sockets = Sockets()
    with connected("ipv4", "127.0.0.1") as (peer, client):
        for number in range(1, 4):
            client.sendall(bytes(1000))
            traffic = sockets.traffic(peer)
            assert traffic is not None
            assert traffic.received_bytes == traffic.unread_bytes == number * 1000
            assert traffic.acked_bytes == 0


@pytest.mark.parametrize("peer", ["unix:", "unix:/run/x.sock", "ipv4:127.0.0.1:1", "?"])
def test_who_has_no_connection_is_not_disconnected(peer: str) -> None:
    """A name without a connection (a Unix socket, or a client that left) ends none."""
    sockets = Sockets()
    assert not sockets.disconnect(peer)
    assert sockets.traffic(peer) is None
    assert not sockets.num_disconnected
