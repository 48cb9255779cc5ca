"""A client with one small request at a time, which takes notice of what others do.

Plain sockets and frames made beforehand: what a gRPC client adds to a request's time
would hide what the server adds.
"""

from __future__ import annotations

import socket
import struct
import time
from types import TracebackType
from typing import Final, Self

import hpack

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS, _PING, _WINDOW_UPDATE = 0, 1, 4, 6, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_LARGEST_WINDOW: Final = (1 << 31) - 1
_TIMEOUT_S: Final = 20.0


class QuietClient:
    """One connection, used for one request after the other. Confined to one thread.

    Args:
        target: ``host:port``.
        path: The method.
        body: The request, sent again and again.

    """

    def __init__(self, target: str, path: str, body: bytes) -> None:
        host, _, port = target.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), _TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._block = hpack.Encoder().encode(
            [
                hpack.NeverIndexedHeaderTuple(name, value)
                for name, value in (
                    (":method", "POST"),
                    (":scheme", "http"),
                    (":path", path),
                    (":authority", target),
                    ("content-type", "application/grpc"),
                    ("te", "trailers"),
                )
            ]
        )
        self._message = b"\0" + struct.pack(">I", len(body)) + body
        self._stream_id = 1
        self._received = b""
        window = _LARGEST_WINDOW - 65_535
        self._socket.sendall(
            _PREFACE
            + _frame(_SETTINGS, 0, 0, b"")
            + _frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", window))
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()

    def ask(self) -> bytes:
        """Sends the request; blocks until the reply is whole and returns its message."""
        request = _frame(_HEADERS, _END_HEADERS, self._stream_id, self._block)
        request += _frame(_DATA, _END_STREAM, self._stream_id, self._message)
        self._stream_id += 2
        self._socket.sendall(request)
        message = b""
        while True:
            frame_type, flags, payload = self._read_frame()
            if frame_type == _DATA:
                message += payload
            elif frame_type == _HEADERS and flags & _END_STREAM:
                return message[5:]
            elif frame_type in (_SETTINGS, _PING) and not flags & _ACK:
                answer = payload if frame_type == _PING else b""
                self._socket.sendall(_frame(frame_type, _ACK, 0, answer))
            elif frame_type not in (_HEADERS, _SETTINGS, _PING, _WINDOW_UPDATE):
                raise ConnectionError(f"frame of type {frame_type}: {payload!r}")

    def latencies_us(self, num_requests: int, pause_s: float) -> list[float]:
        """Asks so many times, with a pause before each; returns how long each took."""
        taken = []
        for _ in range(num_requests):
            time.sleep(pause_s)
            begun_s = time.perf_counter()
            self.ask()
            taken.append((time.perf_counter() - begun_s) * 1e6)
        return taken

    def _read_frame(self) -> tuple[int, int, bytes]:
        while len(self._received) < 9 or len(self._received) < 9 + self._length():
            data = self._socket.recv(65_536)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._received += data
        end = 9 + self._length()
        payload = self._received[9:end]
        frame_type, flags = self._received[3:5]
        self._received = self._received[end:]
        return frame_type, flags, payload

    def _length(self) -> int:
        return int.from_bytes(self._received[:3], "big")


def _frame(frame_type: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    head = struct.pack(">I", len(payload))[1:] + bytes((frame_type, flags))
    return head + struct.pack(">I", stream_id) + payload
