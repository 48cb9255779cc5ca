"""Messages with descriptors over a Unix socket. Requests do not use it.

One message is one packet: a kind byte and a body. A body that is too large for a packet
travels in a memfd, which is the last of the message's descriptors.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence

from tfs.runtime.guest.memory_files import new_memfd, read_at, write_at

_INLINE_BYTES = 32 << 10
_MAX_FDS = 32
_HEADER = struct.Struct("=BQ")  # whether the body is in a memfd, its size
_PLAIN, _IN_MEMFD = 0, 1


def pair() -> tuple[socket.socket, socket.socket]:
    """Returns two connected ends; programs that are started inherit neither."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(channel: socket.socket, body: bytes, fds: tuple[int, ...] = ()) -> None:
    """Sends a message; the receiver gets descriptors of its own.

    Raises:
        BlockingIOError: The channel is non-blocking and full.
        OSError: The other end is gone.

    """
    if len(fds) >= _MAX_FDS:
        raise ValueError("too many descriptors in one message")
    if len(body) <= _INLINE_BYTES:
        _send(channel, _HEADER.pack(_PLAIN, len(body)) + body, fds)
        return
    body_fd = new_memfd("message")
    try:
        write_at(body_fd, body, 0)
        _send(channel, _HEADER.pack(_IN_MEMFD, len(body)), (*fds, body_fd))
    finally:
        os.close(body_fd)


def tell(
    channel: socket.socket,
    fields: Mapping[str, object],
    payload: bytes = b"",
    fds: Sequence[int] = (),
) -> None:
    """Sends a line of JSON and a payload after it, if there is still a host to read it."""
    line = json.dumps(fields).encode() + b"\n"
    with contextlib.suppress(OSError):
        send(channel, line + payload, tuple(fds))


def receive(channel: socket.socket) -> tuple[bytes, list[int]] | None:
    """Returns the next message and its descriptors; None at the end of the channel.

    Raises:
        BlockingIOError: The channel is non-blocking and empty.
        OSError: The message is damaged; its descriptors were closed.

    """
    size_bytes = _HEADER.size + _INLINE_BYTES
    fds_bytes = socket.CMSG_SPACE(_MAX_FDS * 4)
    packet, ancillary, _, _ = channel.recvmsg(
        size_bytes, fds_bytes, socket.MSG_CMSG_CLOEXEC
    )
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    received = list(fds)
    if not packet:
        return None
    if len(packet) < _HEADER.size:
        close_all(received)
        raise OSError("damaged message")
    where, body_bytes = _HEADER.unpack_from(packet)
    if where == _PLAIN:
        return packet[_HEADER.size :], received
    if not received:
        raise OSError("damaged message")
    body_fd = received.pop()
    try:
        size_bytes = min(body_bytes, os.fstat(body_fd).st_size)
        return read_at(body_fd, size_bytes, 0), received
    finally:
        os.close(body_fd)


def waiting(channel: socket.socket) -> Iterator[tuple[bytes, list[int]] | None]:
    """Yields the messages in a non-blocking channel, reading each when it is asked for.

    If the last one is None, the channel has ended, or a message was damaged.
    """
    while True:
        try:
            message = receive(channel)
        except BlockingIOError:
            return
        except OSError:
            message = None
        yield message
        if message is None:
            return


def close_all(fds: list[int]) -> None:
    """Closes descriptors that came with a message nobody wants."""
    for fd in fds:
        os.close(fd)


def _send(channel: socket.socket, packet: bytes, fds: tuple[int, ...]) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
    channel.sendmsg([packet], rights if fds else [])
