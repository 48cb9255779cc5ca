"""The HTTP door of monitoring: pages to whoever asks, and nothing else."""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tfs.core.errors import Unavailable
from tfs.server.metrics import http_door
from tfs.server.metrics.http_door import HttpDoor
from tfs.testing.patience import PATIENCE_S


def fail() -> str:
    raise ValueError("meant to fail")


@pytest.fixture
def door() -> Iterator[HttpDoor]:
    made = HttpDoor(
        "127.0.0.1",
        0,
        {"/metrics": lambda: "a 1\n", "/broken": fail},
        "text/plain; version=0.0.4",
        num_readers=1,
        timeout_s=0.2,
    )
    yield made
    made.close()


def ask(address: str, path: str, method: str = "GET") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    try:
        connection.request(method, path)
        reply = connection.getresponse()
        kind = reply.getheader("Content-Type") or ""
        return reply.status, kind, reply.read().decode()
    finally:
        connection.close()


def test_a_page_is_written_for_everybody_who_asks(door: HttpDoor) -> None:
    """The page has its type; a query changes nothing, and HEAD has no body."""
    address = door.start()
    kind = "text/plain; version=0.0.4"
    assert ask(address, "/metrics") == (200, kind, "a 1\n")
    assert ask(address, "/metrics?x=1") == (200, kind, "a 1\n")
    assert ask(address, "/metrics", "HEAD") == (200, kind, "")


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_an_address_of_ipv6_is_taken_as_the_port_of_grpc_takes_it(host: str) -> None:
    """Its brackets may be left out or not, and what is told can be asked."""
    made = HttpDoor(host, 0, {"/metrics": lambda: "a 1\n"}, "text/plain")
    try:
        address = made.start()
        assert address.startswith("[::1]:")
        assert ask(address, "/metrics")[0] == 200
    finally:
        made.close()


def test_what_is_no_page_is_told(door: HttpDoor) -> None:
    """Predictions over REST among it; a page that fails says where to look."""
    address = door.start()
    for path, method, expected in (
        ("/v1/models/m", "GET", 404),
        ("/v1/models/m:predict", "POST", 501),
    ):
        status, kind, text = ask(address, path, method)
        assert (status, kind) == (expected, "text/plain; version=0.0.4")
        assert "there is /metrics, /broken, and no REST API: call gRPC" in text
    status, _, text = ask(address, "/broken")
    assert (status, "see the log" in text) == (500, True)


def test_silent_readers_keep_nobody_out(door: HttpDoor) -> None:
    """They are cut off, and the next one that waits is answered."""
    address = door.start()
    host, port = address.split(":")
    silent = [socket.create_connection((host, int(port)), PATIENCE_S) for _ in "ab"]
    try:
        assert ask(address, "/metrics")[0] == 200
    finally:
        for each in silent:
            each.close()


def test_readers_that_ask_a_byte_at_a_time_keep_nobody_out() -> None:
    """What they send is no sign of life: a request has its time, and then it is over."""
    door = HttpDoor(
        "127.0.0.1", 0, {"/metrics": str}, "text/plain", num_readers=1, timeout_s=1.0
    )
    host, port = door.start().split(":")
    with (
        contextlib.closing(door),
        socket.create_connection((host, int(port)), PATIENCE_S) as slow,
        socket.create_connection((host, int(port)), PATIENCE_S) as patient,
    ):
        patient.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        answered = False
        while not answered:
            with contextlib.suppress(OSError):  # it was cut off
                slow.send(b"x")
            answered = bool(select.select([patient], [], [], 0.05)[0])
        assert b"200 OK" in patient.recv(1 << 16)


def test_a_door_full_of_readers_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's end waits neither for them nor for who waits for their places."""
    came = threading.Semaphore(0)
    take = http_door._Server.process_request

    def note(server: http_door._Server, *arguments: Any) -> None:
        came.release()
        take(server, *arguments)

    monkeypatch.setattr(http_door._Server, "process_request", note)
    door = HttpDoor("127.0.0.1", 0, {}, "", num_readers=1, timeout_s=PATIENCE_S * 10)
    host, port = door.start().split(":")
    with contextlib.ExitStack() as readers:
        for _ in range(2):
            reader = socket.create_connection((host, int(port)), PATIENCE_S)
            readers.enter_context(reader).sendall(b"GET /")
            assert came.acquire(timeout=PATIENCE_S)
        closing = threading.Thread(target=door.close, daemon=True)
        closing.start()
        closing.join(PATIENCE_S)
        assert not closing.is_alive()


def test_a_port_that_is_taken_is_named(door: HttpDoor) -> None:
    """A taken port is named, as gRPC's are; closing the door may be repeated."""
    address = door.start()
    port = int(address.rpartition(":")[2])
    with pytest.raises(Unavailable, match=f"{port}.*rest_api_port"):
        HttpDoor("127.0.0.1", port, {}, "").start()
    with pytest.raises(Unavailable):
        HttpDoor("no.such.host.invalid", 0, {}, "").start()
    door.close()
    door.close()
    with pytest.raises(OSError, match="refused"):
        ask(address, "/metrics")
