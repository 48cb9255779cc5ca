"""Where a server listens: Unix sockets, and every address that a name stands for."""

from __future__ import annotations

import contextlib
import errno
import socket
from pathlib import Path
from typing import Any

import pytest

from tfs.core.call import ListenerOptions
from tfs.core.errors import Unavailable
from tfs.core.executor import InlineExecutor
from tfs.core.loop.serving_loop import ServingLoop
from tfs.frontends.express.transport import ExpressTransport
from tfs.frontends.listener import Listener
from tfs.testing.fake_clock import FakeClock


def test_a_file_in_the_way_is_not_removed(tmp_path: Path) -> None:
    """Only sockets nobody listens on are."""
    path = tmp_path / "file"
    path.write_text("precious")
    with pytest.raises(Unavailable):
        Listener(ListenerOptions("x", f"unix:{path}"))
    assert path.read_text() == "precious"


@pytest.mark.parametrize("address", ["8500", "localhost:http", "unix:relative.sock"])
def test_a_malformed_address_is_refused(address: str) -> None:
    """A malformed address is refused, and the message says what is expected."""
    with pytest.raises(ValueError, match=r"address|absolute"):
        Listener(ListenerOptions("x", address))


def test_ipv6_peers_are_written_with_brackets() -> None:
    """IPv6 addresses have brackets, so that host and port can be told apart."""
    try:
        listener = Listener(ListenerOptions("x", "[::1]:0"))
    except Unavailable:
        pytest.skip("this machine has no IPv6 loopback address")
    with socket.socket(socket.AF_INET6) as client:
        listening = listener.sockets[0]
        listening.setblocking(True)
        client.connect(("::1", int(listener.address.rpartition(":")[2])))
        accepted, peer = listener.accept(listening)
        accepted.close()
    listener.close()
    assert peer.address.startswith("[::1]:")
    assert peer.is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_any_address_is_one_of_either_family(host: str) -> None:
    """0.0.0.0 takes IPv6 clients too, as in grpc, and peers keep their family."""
    listener = Listener(ListenerOptions("x", "0.0.0.0:0"))
    port = int(listener.address.removeprefix("0.0.0.0:"))
    (listening,) = listener.sockets
    if ":" in host and listening.family is socket.AF_INET:
        pytest.skip("this machine has no IPv6")
    listening.setblocking(True)
    with socket.create_connection((host, port)):
        accepted, peer = listener.accept(listening)
        accepted.close()
    with pytest.raises(Unavailable, match=f"0.0.0.0:{port}"):
        Listener(ListenerOptions("y", f"0.0.0.0:{port}"))
    listener.close()
    assert peer.address.rpartition(":")[0].strip("[]") == host
    assert peer.is_loopback


def test_without_ipv6_any_address_is_any_of_ipv4(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kernel without it refuses the socket, not the server."""
    real = socket.socket

    def ipv4_only(family: int, kind: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "no IPv6")
        return real(family, kind)

    monkeypatch.setattr(socket, "socket", ipv4_only)
    listener = Listener(ListenerOptions("x", "0.0.0.0:0"))
    assert [each.family for each in listener.sockets] == [socket.AF_INET]
    assert listener.address.startswith("0.0.0.0:")
    listener.close()


def resolve_to(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    """Makes every name stand for these addresses, each told twice."""

    def getaddrinfo(host: str, port: int, **hints: int) -> list[Any]:
        places: list[Any] = [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (each, port, 0, 0))
            if ":" in each
            else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port))
            for each in hosts
        ]
        return places * 2

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def test_a_name_is_every_address_it_stands_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server listens on every address of a name, on the same port."""
    resolve_to(monkeypatch, "127.0.0.2", "127.0.0.1")
    listener = Listener(ListenerOptions("x", "localhost:0"))
    port = int(listener.address.removeprefix("localhost:"))
    names = [each.getsockname() for each in listener.sockets]
    assert names == [("127.0.0.2", port), ("127.0.0.1", port)]
    with pytest.raises(Unavailable, match=f"localhost:{port}"):
        Listener(ListenerOptions("y", f"localhost:{port}"))
    listener.close()
    assert all(each.fileno() < 0 for each in listener.sockets)


def test_what_a_name_stands_for_elsewhere_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hosts file may name ::1 while IPv6 is off; something must be this machine's."""
    resolve_to(monkeypatch, "192.0.2.1", "127.0.0.1")
    listener = Listener(ListenerOptions("x", "localhost:0"))
    assert [each.getsockname()[0] for each in listener.sockets] == ["127.0.0.1"]
    listener.close()
    resolve_to(monkeypatch, "192.0.2.1")
    with pytest.raises(Unavailable, match=r"cannot listen on elsewhere:0"):
        Listener(ListenerOptions("x", "elsewhere:0"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("file", "Address already in use; free it, or choose another"),
        ("absent/socket", "No such file or directory; free it"),
        ("x" * 120, "too long; free it, or choose another address"),
    ],
)
def test_a_path_that_cannot_be_a_socket_says_what_to_do(
    tmp_path: Path, name: str, words: str
) -> None:
    """Nobody holds it, so there is nothing to stop; what lies there stays."""
    (tmp_path / "file").write_text("precious")
    with pytest.raises(Unavailable, match=words):
        Listener(ListenerOptions("admin", f"unix:{tmp_path / name}"))
    assert (tmp_path / "file").read_text() == "precious"


def test_every_address_of_a_name_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each socket is watched, and let go with the others."""
    resolve_to(monkeypatch, "127.0.0.2", "127.0.0.1")
    loop = ServingLoop(FakeClock(), name="names")
    transport = ExpressTransport(loop, executor=InlineExecutor())
    try:
        (address,) = transport.start([ListenerOptions("x", "localhost:0")], {})
        loop.step()
        port = int(address.removeprefix("localhost:"))
        for number, host in enumerate(("127.0.0.2", "127.0.0.1"), 1):
            with socket.socket() as client:
                client.connect((host, port))
                loop.step()  # connected is accepted: the kernel has it already
                assert transport.clients.counters.connections == number
    finally:
        transport.close()
        loop.close()
    with socket.socket() as client, pytest.raises(ConnectionRefusedError):
        client.connect(("127.0.0.2", port))


def test_a_wave_of_clients_waits_to_be_accepted() -> None:
    """Beyond the backlog, the kernel drops clients, who try again after a second or three."""
    with open("/proc/sys/net/core/somaxconn") as limit:
        num_clients = min(1500, int(limit.read()))
    listener = Listener(ListenerOptions("wave", "127.0.0.1:0"))
    with contextlib.ExitStack() as clients:
        clients.callback(listener.close)
        where = listener.sockets[0].getsockname()
        for _ in range(num_clients):
            # It would block for a second if its first packet were dropped.
            clients.enter_context(socket.create_connection(where, timeout=0.9))
