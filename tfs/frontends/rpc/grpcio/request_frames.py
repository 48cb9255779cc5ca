"""What a client of grpcio's sends, frame by frame, before that library sees it.

grpcio takes any number of headers of a call, as long as they come in many frames
(CVE-2024-27316): sixty clients took 3 GB within seconds, whatever limits it was told
(seen with 1.85.1). So blocks of headers are passed on whole, and only up to a limit.
The frames with which a call begins are held back while its client, or all clients
together, have enough calls (:mod:`tfs.frontends.rpc.grpcio.call_gate`). Frames that
belong to calls under way pass them.

This knows frames (RFC 9113, section 4.1), and nothing of what is in them: what breaks
the protocol otherwise is for grpcio to find.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tfs.frontends.rpc.frames import (
    END_HEADERS,
    END_STREAM,
    HEAD_SIZE,
    PREFACE,
    FrameType,
    unpack_head,
)
from tfs.frontends.rpc.grpcio.call_gate import CallGate

_MOST_BLOCK_BYTES: Final = 65_536  # of headers; through express a connection ends, too
_FRAME_BYTES: Final = 512  # what each frame of a block counts besides what is in it
# Headers of the calls that a connection may have, if it has more than one.
_MOST_HEADER_BYTES: Final = 131_072
# What may be held back of one connection before nothing more is read from it. HTTP/2
# lets a client send 64 KB of requests before the server can object.
_MOST_HELD_BYTES: Final = 262_144
_MOST_HELD: Final = 1000  # calls
# What the bodies of calls that wait may take. They use up the connection's window, which
# grpcio does not open again for what it has not seen, and which is as long as what a
# client may send unasked (8 KB). Without it the calls under way would never end.
_MOST_HELD_BODY_BYTES: Final = 2048
_MOST_FUTILE: Final = 200  # a client may reset since the last call that was answered
# Whoever gives a call up that was held back for so long does not flood us: its deadline
# has passed, as those of all clients do where the server is overloaded.
_PATIENCE_S: Final = 0.25
_DECODED_BYTES: Final = 16_384
# Frames that ask for nothing, each of which costs microseconds: SETTINGS, PING, PRIORITY,
# windows, resets, unknown ones, and scraps of data. Good clients send some with each
# call, and windows for what they read.
_MOST_IDLE: Final = 1000
_IDLE_PER_S: Final = 100.0
_IDLE_PER_CALL: Final = 20
_BYTES_PER_IDLE: Final = 2048  # of answers
_LEAST_WINDOWS: Final = 4
_SCRAP_BYTES: Final = 64
_STREAM_BITS: Final = 0x7FFF_FFFF


class FloodError(Exception):
    """A client floods us; its connection is to be closed."""


class _Held:
    """The frames of a call that has to wait. Confined to grpcio's thread."""

    __slots__ = (
        "begun_s",
        "data",
        "is_reset",
        "is_whole",
        "num_body_bytes",
        "num_header_bytes",
        "stream_id",
    )

    def __init__(self, stream_id: int, begun_s: float) -> None:
        self.begun_s = begun_s
        self.data = bytearray()
        self.num_body_bytes = 0
        self.stream_id = stream_id
        self.num_header_bytes = 0
        self.is_whole = False  # whether the block of headers has ended
        self.is_reset = False


class RequestFrames:
    """Decides which of a client's bytes grpcio gets now. Confined to grpcio's thread.

    Args:
        gate: Limits the calls of all connections together.
        most_calls: How many calls this connection may have.
        on_gone: Called when a call that was reset counts no more, so that another one
            of this connection may begin.

    Attributes:
        num_held_bytes: Bytes that are held back.

    """

    def __init__(
        self,
        gate: CallGate,
        most_calls: int,
        on_gone: Callable[[], None] = lambda: None,
    ) -> None:
        self.num_held_bytes = 0
        self._num_idle = 0.0
        self._looked_s = gate.now()
        self._gate = gate
        self._most_calls = most_calls
        self._on_gone = on_gone
        # Calls under way, and the bytes of their headers.
        self._open: dict[int, int] = {}
        self._num_header_bytes = 0
        self._num_futile = 0  # calls that were reset soon, while they waited
        self._num_limbo = 0  # calls that were reset, and that grpcio may still hold
        self._held: dict[int, _Held] = {}  # by stream, the longest waiting first
        self._num_body_bytes = 0  # of the calls that wait
        self._last_stream_id = 0
        self._block: _Held | None = None  # whose block of headers has not ended
        self._num_block_bytes = 0
        self._rest = b""  # the beginning of a head
        self._num_left = len(PREFACE)  # bytes of the frame that is being read
        self._target: _Held | None = None  # who gets them; None for grpcio

    @property
    def waits_for_others(self) -> bool:
        """Whether a call is held back because of what other connections have."""
        held = next(iter(self._held.values()), None)
        return held is not None and self._is_ready(held)

    @property
    def _is_pressed(self) -> bool:
        """Whether calls that wait may keep those under way from ending."""
        return self._num_body_bytes > _MOST_HELD_BODY_BYTES or self.is_full

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be read from this client for now."""
        return self.num_held_bytes > _MOST_HELD_BYTES

    def take(self, data: bytes) -> bytes:
        """Returns what grpcio may have of this and of what was held back.

        Raises:
            FloodError: The client sends headers or idle frames without end.

        """
        now_s = self._gate.now()
        elapsed_s, self._looked_s = now_s - self._looked_s, now_s
        self._num_idle = max(0.0, self._num_idle - elapsed_s * _IDLE_PER_S)
        if self._rest:
            data, self._rest = self._rest + data, b""
        parts: list[bytes | bytearray | memoryview] = []
        view = memoryview(data)
        begin = index = 0  # what lies between goes to grpcio
        while True:
            if self._num_left:
                num_bytes = min(self._num_left, len(data) - index)
                self._num_left -= num_bytes
                if self._target is not None:
                    self._hold(self._target, view[index : index + num_bytes])
                    begin = index + num_bytes
                index += num_bytes
                if self._num_left:
                    break
            block = self._block
            if block is not None and block.is_whole and not self._num_left:
                self._block = None
                if self._may_begin(block):
                    parts.append(self._let_in(block))
            if len(data) - index < HEAD_SIZE:
                self._rest = data[index:]
                break
            word, flags, stream_id = unpack_head(data, index)
            stream_id &= _STREAM_BITS
            target = self._target_of(word & 0xFF, flags, stream_id, word >> 8)
            if target is not None:
                parts.append(view[begin:index])
                self._hold(target, view[index : index + HEAD_SIZE])
                begin = index + HEAD_SIZE
            index += HEAD_SIZE
            self._num_left = word >> 8
            self._target = target
        if not parts and begin == 0 and index == len(data):
            return data
        parts.append(view[begin:index])
        return b"".join(parts)

    def let_in(self) -> bytes:
        """Returns the frames of the calls that have waited and may begin now."""
        parts = []
        for held in list(self._held.values()):
            if not self._may_begin(held):
                break
            parts.append(self._let_in(held))
        return b"".join(parts)

    def let_in_next(self) -> bytes:
        """Returns the frames of the call that has waited longest, if it may begin."""
        held = next(iter(self._held.values()), None)
        if held is None or not self._is_ready(held):
            return b""
        return bytes(self._let_in(held))

    def note_answered(self, num_bytes: int) -> None:
        """Notes how much the server sends, for which the client opens windows."""
        num_windows = num_bytes / _BYTES_PER_IDLE + _LEAST_WINDOWS
        self._num_idle = max(0.0, self._num_idle - num_windows)

    def note_ended(self, stream_id: int) -> None:
        """Notes that the server has ended a call."""
        num_bytes = self._open.pop(stream_id, None)
        if num_bytes is not None:
            self._num_header_bytes -= num_bytes
            self._num_futile = 0
            self._gate.end()

    def close(self) -> None:
        """Gives back what the connection has of the gate; its calls end soon."""
        for stream_id in list(self._open):
            self._reset(stream_id)
        self._held.clear()
        self._on_gone = _do_nothing  # it refers to the connection

    def _target_of(
        self, kind: int, flags: int, stream_id: int, num_bytes: int
    ) -> _Held | None:
        """Returns who gets a frame; None for grpcio."""
        block = self._block
        if block is not None:
            if kind != FrameType.CONTINUATION or stream_id != block.stream_id:
                raise FloodError("it sends other frames within a block of headers")
            self._add_to_block(block, flags, num_bytes)
            return block
        if kind == FrameType.HEADERS and stream_id > self._last_stream_id:
            self._num_idle -= _IDLE_PER_CALL
            return self._begin(flags, stream_id, num_bytes)
        if kind == FrameType.HEADERS and (self._held or not flags & END_HEADERS):
            # No gRPC client sends headers after its request. They would have to wait
            # for all that came before, by which they are compressed.
            raise FloodError("it sends headers within a call")
        if kind != FrameType.DATA or (
            num_bytes < _SCRAP_BYTES and not flags & END_STREAM
        ):
            self._num_idle += 1
            if self._num_idle > _MOST_IDLE:
                raise FloodError("it sends frames that ask for nothing")
        held = self._held.get(stream_id)
        if kind == FrameType.DATA and held is not None:
            held.num_body_bytes += num_bytes
            self._num_body_bytes += num_bytes
        if kind == FrameType.RST_STREAM:
            if held is not None:
                held.is_reset = True
                self._num_futile += self._looked_s - held.begun_s < _PATIENCE_S
                if self._num_futile > _MOST_FUTILE:
                    raise FloodError("it begins calls and resets them at once")
            else:
                self._reset(stream_id)
        return held

    def _begin(self, flags: int, stream_id: int, num_bytes: int) -> _Held | None:
        self._last_stream_id = stream_id
        held = _Held(stream_id, self._looked_s)
        self._num_block_bytes = 0
        self._add_to_block(held, flags, num_bytes)
        if held.is_whole and self._may_begin(held):
            self._count(held)
            return None
        if len(self._held) >= _MOST_HELD:
            raise FloodError("it begins calls without end")
        self._held[stream_id] = held
        self._block = held
        return held

    def _add_to_block(self, held: _Held, flags: int, num_bytes: int) -> None:
        self._num_block_bytes += num_bytes + _FRAME_BYTES
        if self._num_block_bytes > _MOST_BLOCK_BYTES:
            raise FloodError("it sends headers without end")
        # What one further frame stands for is limited by grpcio, to this.
        held.num_header_bytes += (
            max(num_bytes, _DECODED_BYTES) if self._block else num_bytes
        )
        held.is_whole = bool(flags & END_HEADERS)

    def _hold(self, held: _Held, data: memoryview) -> None:
        held.data += data
        self.num_held_bytes += len(data)

    def _is_in_bounds(self, held: _Held) -> bool:
        """Whether this connection alone is no reason to have a call wait."""
        num_own = len(self._open) + self._num_limbo
        return not num_own or (
            num_own < self._most_calls
            and (
                self._num_header_bytes + held.num_header_bytes <= _MOST_HEADER_BYTES
                or self._is_pressed
            )
        )

    def _is_ready(self, held: _Held) -> bool:
        """Whether the first call that waits could begin, as far as its connection goes."""
        # grpcio may have the beginning of another frame.
        is_between = not self._num_left or self._target is not None
        return is_between and held.is_whole and self._is_in_bounds(held)

    def _may_begin(self, held: _Held) -> bool:
        first = next(iter(self._held.values()), held)
        if first is not held or not self._is_ready(held):
            return False
        if self._is_pressed and (not held.is_reset or self._gate.may_reset()):
            return True
        return self._gate.may_begin(len(self._open) + self._num_limbo)

    def _let_in(self, held: _Held) -> bytearray:
        del self._held[held.stream_id]
        self.num_held_bytes -= len(held.data)
        self._num_body_bytes -= held.num_body_bytes
        if self._target is held:
            self._target = None  # what is missing of its last frame follows
        self._count(held)
        if held.is_reset:
            self._reset(held.stream_id)
        return held.data

    def _count(self, held: _Held) -> None:
        self._gate.begin()
        self._open[held.stream_id] = held.num_header_bytes
        self._num_header_bytes += held.num_header_bytes

    def _reset(self, stream_id: int) -> None:
        num_bytes = self._open.pop(stream_id, None)
        if num_bytes is not None:
            self._num_header_bytes -= num_bytes
            self._num_limbo += 1
            self._gate.reset(self._leave_limbo)

    def _leave_limbo(self) -> None:
        self._num_limbo -= 1
        self._on_gone()


def _do_nothing() -> None:
    """Stands in for a connection that has ended."""
