from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from tfs.runtime.guest import control_channel


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = control_channel.pair()
    yield one, other
    one.close()
    other.close()


@pytest.mark.parametrize("size_bytes", [0, 1, 32 << 10, (32 << 10) + 1, 4 << 20])
def test_bodies_of_any_size_arrive_with_their_descriptors(
    ends: tuple[socket.socket, socket.socket], size_bytes: int
) -> None:
    """A body that no packet holds goes another way, and nobody notices."""
    body = os.urandom(size_bytes)
    read_fd, write_fd = os.pipe()
    control_channel.send(ends[0], body, (read_fd,))
    os.close(read_fd)
    message = control_channel.receive(ends[1])
    assert message is not None
    received, fds = message
    assert received == body
    assert len(fds) == 1
    os.write(write_fd, b"x")
    assert os.read(fds[0], 1) == b"x"
    assert not os.get_inheritable(fds[0])
    control_channel.close_all([*fds, write_fd])


def test_a_body_that_takes_several_system_calls_arrives_whole(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call moves 2 GB at most, and what a session is given may be more."""
    write, read = os.pwrite, os.pread
    monkeypatch.setattr(
        os, "pwrite", lambda fd, data, at: write(fd, data[: 40 << 10], at)
    )
    monkeypatch.setattr(os, "pread", lambda fd, size, at: read(fd, size // 2 + 1, at))
    body = os.urandom(100 << 10)
    control_channel.send(ends[0], body)
    assert control_channel.receive(ends[1]) == (body, [])


def test_messages_keep_their_bounds_and_the_end_is_none(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """One receive per send, in order, then the end."""
    for body in (b"a", b"bc", b""):
        control_channel.send(ends[0], body)
    ends[0].close()
    assert [control_channel.receive(ends[1]) for _ in range(4)] == [
        (b"a", []),
        (b"bc", []),
        (b"", []),
        None,
    ]


@pytest.mark.parametrize("packet", [b"x", b"\x01" + bytes(8)])
def test_a_damaged_message_is_an_error(
    ends: tuple[socket.socket, socket.socket], packet: bytes
) -> None:
    """Too short, or promising a memfd that is not there."""
    ends[0].send(packet)
    with pytest.raises(OSError, match="damaged"):
        control_channel.receive(ends[1])


def test_what_waits_is_read_up_to_the_end(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """A reader gets what lies there and no more, and hears of the end once."""
    ours, theirs = ends
    ours.setblocking(False)
    control_channel.send(theirs, b"one")
    control_channel.send(theirs, b"two")
    assert list(control_channel.waiting(ours)) == [(b"one", []), (b"two", [])]
    assert list(control_channel.waiting(ours)) == []
    control_channel.send(theirs, b"three")
    theirs.close()
    assert list(control_channel.waiting(ours)) == [(b"three", []), None]
