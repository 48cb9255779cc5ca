"""What a client of grpcio's sends, frame by frame, before that library sees it.

grpcio takes any number of headers of a call, as long as they come in many frames
(CVE-2024-27316): sixty clients took 3 GB within seconds, whatever limits it was told
(seen with 1.85.1). So blocks of headers are passed on whole, and only up to a limit.
The frames with which a call begins are held back while its client, or all clients
together, have enough calls (:mod:`tfs.frontends.rpc.grpcio.call_gate`), or while grpcio
has enough of this client's that it has not handed over. It hands over calls in the order
in which they came, so no client's should fill its queue. Frames that belong to calls
under way pass those that wait. Bodies of calls that wait take the connection's window,
so they do not wait where a request that is read could not be sent without it.

Headers are checked and written anew (:mod:`tfs.frontends.rpc.grpcio.client_heads`). A
call that its client gives up while it waits, or whose headers are malformed, never
reaches grpcio. Its body does: grpcio ignores it, and opens the connection's window
again.

Of other frames (RFC 9113, section 4.1) only the heads are known here: what breaks the
protocol otherwise is for grpcio to find.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

from tfs.frontends.rpc.frames import (
    DEFAULT_TABLE_SIZE,
    END_HEADERS,
    END_STREAM,
    HEAD_SIZE,
    PREFACE,
    ConnectionFault,
    ErrorCode,
    FrameType,
    Setting,
    frame,
    parse_settings,
    rst_stream,
    unpack_head,
)
from tfs.frontends.rpc.grpcio.call_gate import CallGate
from tfs.frontends.rpc.grpcio.client_heads import ClientHeads, RefusedHead
from tfs.frontends.rpc.grpcio.held_call import HeldCall
from tfs.frontends.rpc.heads.refusal_block import refusal_block

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
# client may send unasked (8 KB). Calls that are read would never be whole without it.
_MOST_HELD_BODY_BYTES: Final = 2048
# Calls that a client may reset at once, and in a second. Where all its deadlines pass
# after a tenth of a second, one with 64 calls at a time resets 640 in a second.
_MOST_RESETS: Final = 1000
_RESETS_PER_S: Final = 1000.0
# Frames that ask for nothing, each of which costs microseconds: SETTINGS, PING, PRIORITY,
# windows, resets, unknown ones, scraps of data, and data of no call. Good clients send
# some with each call, and windows for what they read.
_MOST_IDLE: Final = 1000
_IDLE_PER_S: Final = 100.0
_IDLE_PER_CALL: Final = 20
_BYTES_PER_IDLE: Final = 2048  # of answers
_LEAST_WINDOWS: Final = 4
_SCRAP_BYTES: Final = 64
_IDLE_BYTES: Final = 16_384  # a longer one counts as several
_SETTING_BYTES: Final = 6
_MOST_SETTINGS_BYTES: Final = 64 * _SETTING_BYTES  # that are read
_STREAM_BITS: Final = 0x7FFF_FFFF


class FloodError(Exception):
    """A client floods us; its connection is to be closed."""


class RequestFrames:
    """Decides which of a client's bytes grpcio gets now. Confined to grpcio's thread.

    Args:
        gate: Limits the calls of all connections together.
        most_calls: How many calls this connection may have.
        heads: Reads this client's headers.
        on_refused: Told what to send to the client soon: that one of its streams is
                reset, or a plain HTTP answer. Does not call this object.
        on_gone: Called when a call counts no more, so that another one of this
            connection may begin.

    Attributes:
        num_held_bytes: Bytes that are held back.
        num_frames: Frames that began in what was taken last.
        last_stream_id: The last stream that the client began.

    """

    def __init__(
        self,
        gate: CallGate,
        most_calls: int,
        heads: ClientHeads,
        on_refused: Callable[[bytes], None],
        on_gone: Callable[[], None] = lambda: None,
    ) -> None:
        self.num_held_bytes = 0
        self.num_frames = 0
        self._num_idle = 0.0
        self._num_resets = 0.0
        self._looked_s = gate.now()
        self._gate = gate
        self._most_calls = most_calls
        self._heads = heads
        self._on_refused = on_refused
        self._on_gone = on_gone
        # Calls under way, and the bytes of their headers.
        self._open: dict[int, int] = {}
        self._num_header_bytes = 0
        # Those of them whose requests have not ended, and those of these that are read.
        self._unsent: set[int] = set()
        self._hungry: set[int] = set()
        # Calls that grpcio has not handed over, in order, and when they began; and those
        # of them that were reset, which it may still hold.
        self._fresh: dict[int, float] = {}
        self._dead: set[int] = set()
        self._held: dict[int, HeldCall] = {}  # by stream, the longest waiting first
        self._num_given_up = 0  # of those that wait
        self._num_body_bytes = 0  # of the calls that wait
        self.last_stream_id = 0
        self._block: HeldCall | None = None  # whose block of headers has not ended
        self._num_block_bytes = 0
        self._rest = b""  # the beginning of a head
        self._num_left = len(PREFACE)  # bytes of the frame that is being read
        self._target: HeldCall | None = None  # who gets them; None for grpcio
        self._may_answer = True  # the client with headers of ours

    @property
    def num_calls(self) -> int:
        """Calls of this connection that grpcio may hold, as far as they count."""
        return len(self._open) + len(self._dead) - self._num_spared

    @property
    def has_calls(self) -> bool:
        """Whether calls are under way, or wait, that nobody has given up."""
        return bool(self._open) or len(self._held) > self._num_given_up

    @property
    def _num_spared(self) -> int:
        """Calls that do not count: one if all are dead.

        The next one finds out when those are gone.
        """
        return 1 if self._dead and not self._open else 0

    @property
    def waits_for_others(self) -> bool:
        """Whether a call is held back because of what other connections have."""
        held = next(iter(self._held.values()), None)
        return held is not None and self._is_ready(held)

    @property
    def _takes_window(self) -> bool:
        """Whether calls that wait keep one that is read from being sent."""
        return bool(self._hungry) and self._num_body_bytes > _MOST_HELD_BODY_BYTES

    @property
    def _is_pressed(self) -> bool:
        """Whether calls that wait may keep those under way from ending."""
        return self._takes_window or self.is_full

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be read from this client for now."""
        return self.num_held_bytes > _MOST_HELD_BYTES

    def take(self, data: bytes) -> bytes:
        """Returns what grpcio may have of this and of what was held back.

        Raises:
            FloodError: The client sends headers, resets or idle frames without end.
            ConnectionFault: Its headers cannot be read.

        """
        now_s = self._gate.now()
        elapsed_s, self._looked_s = now_s - self._looked_s, now_s
        self._num_idle = max(0.0, self._num_idle - elapsed_s * _IDLE_PER_S)
        self._num_resets = max(0.0, self._num_resets - elapsed_s * _RESETS_PER_S)
        self.num_frames = 0
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
            if block is not None and block.is_whole:
                self._block = None
                if block.stream_id not in self._held:
                    parts.append(self._end_by_headers(block))
                elif self._may_begin(block):
                    parts.append(self._let_in(block))
            if len(data) - index < HEAD_SIZE:
                self._rest = data[index:]
                break
            word, flags, stream_id = unpack_head(data, index)
            stream_id &= _STREAM_BITS
            self.num_frames += 1
            if word & 0xFF == FrameType.SETTINGS:
                payload = index + HEAD_SIZE
                self._note_settings(data[payload : payload + (word >> 8)], word >> 8)
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
        """Returns the frames of the calls that have waited and may begin now.

        Raises:
            FloodError: The client sends malformed headers without end.
            ConnectionFault: Its headers cannot be read.

        """
        parts = []
        for held in list(self._held.values()):
            if not self._may_begin(held):
                break
            parts.append(self._let_in(held))
        return b"".join(parts)

    def let_in_next(self) -> bytes:
        """Returns the frames of the call that has waited longest, if it may begin.

        Raises:
            FloodError: The client sends malformed headers without end.
            ConnectionFault: Its headers cannot be read.

        """
        held = next(iter(self._held.values()), None)
        if held is None or not self._is_ready(held):
            return b""
        return bytes(self._let_in(held))

    def note_answered(self, num_bytes: int) -> None:
        """Notes how much the server sends, for which the client opens windows."""
        num_windows = num_bytes / _BYTES_PER_IDLE + _LEAST_WINDOWS
        self._num_idle = max(0.0, self._num_idle - num_windows)

    def note_taken(self, is_read: bool = True) -> None:
        """Notes that grpcio has handed over a call: the one that is fresh for longest.

        Args:
            is_read: Whether its request is going to be read to its end.

        """
        stream_id = next(iter(self._fresh), None)
        if stream_id is not None:
            if is_read and stream_id in self._unsent:
                self._hungry.add(stream_id)
            self._gate.note_taken(self._fresh[stream_id])
            self._forget_up_to(stream_id)
            self._on_gone()

    def note_ended(self, stream_id: int) -> None:
        """Notes that the server has ended a call."""
        num_bytes = self._open.pop(stream_id, None)
        if num_bytes is not None:
            self._num_header_bytes -= num_bytes
            self._note_sent(stream_id)
            if stream_id in self._fresh:
                self._forget_up_to(stream_id)
            self._gate.end()

    def close(self) -> None:
        """Gives back what the connection has of the gate; its calls end soon."""
        num_taken = len(self._open) + len(self._dead) - len(self._fresh)
        for _ in range(num_taken):
            self._gate.end()
        for _ in self._fresh:
            self._gate.leave()
        self._gate.num_queuing -= bool(self._fresh)
        self._open.clear()
        self._fresh.clear()
        self._unsent.clear()
        self._hungry.clear()
        self._dead.clear()
        self._held.clear()
        self._on_gone = _do_nothing  # they refer to the connection
        self._on_refused = _ignore

    def _target_of(
        self, kind: int, flags: int, stream_id: int, num_bytes: int
    ) -> HeldCall | None:
        """Returns who gets a frame; None for grpcio."""
        block = self._block
        if block is not None:
            if kind != FrameType.CONTINUATION or stream_id != block.stream_id:
                raise FloodError("it sends other frames within a block of headers")
            self._add_to_block(block, flags, num_bytes)
            return block
        if kind == FrameType.HEADERS:
            return self._begin(flags, stream_id, num_bytes)
        if kind == FrameType.CONTINUATION:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "headers without a begin")
        held = self._held.get(stream_id)
        if flags & END_STREAM and kind == FrameType.DATA:
            self._note_sent(stream_id)
            if held is not None:
                held.is_sent = True
        is_known = held is not None or stream_id in self._open
        if (
            kind != FrameType.DATA
            or (num_bytes < _SCRAP_BYTES and not flags & END_STREAM)
            or not is_known
        ):
            self._note_idle(num_bytes)
        if kind == FrameType.DATA and held is not None:
            held.num_body_bytes += num_bytes
            self._num_body_bytes += num_bytes
        if kind == FrameType.RST_STREAM and is_known:
            self._note_reset()
            if held is None:
                self._reset(stream_id)
            elif not held.is_reset:
                self._give_up(held)
        return held

    def _begin(self, flags: int, stream_id: int, num_bytes: int) -> HeldCall:
        """Returns who gets the first frame of a block of headers."""
        if not stream_id & 1:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "even stream id")
        block = self._block = HeldCall(stream_id)
        self._num_block_bytes = 0
        self._add_to_block(block, flags, num_bytes)
        if stream_id > self.last_stream_id:
            self.last_stream_id = stream_id
            self._num_idle -= _IDLE_PER_CALL
            self._held[stream_id] = block
            if len(self._held) - self._num_given_up > _MOST_HELD:
                raise FloodError("it begins calls without end")
        else:
            self._note_idle(num_bytes)
            if self._held or not flags & END_HEADERS:
                # No gRPC client sends headers after its request. They would have to
                # wait for all that came before, by which they are compressed.
                raise FloodError("it sends headers within a call")
        return block

    def _add_to_block(self, block: HeldCall, flags: int, num_bytes: int) -> None:
        self._num_block_bytes += num_bytes + _FRAME_BYTES
        if self._num_block_bytes > _MOST_BLOCK_BYTES:
            raise FloodError("it sends headers without end")
        block.note_frame(flags, num_bytes)

    def _note_idle(self, num_bytes: int) -> None:
        self._num_idle += max(1.0, num_bytes / _IDLE_BYTES)
        if self._num_idle > _MOST_IDLE:
            raise FloodError("it sends frames that ask for nothing")

    def _note_reset(self) -> None:
        self._num_resets += 1
        if self._num_resets > _MOST_RESETS:
            raise FloodError("it begins calls and resets them")

    def _give_up(self, held: HeldCall) -> None:
        held.is_reset = True
        self._num_given_up += 1

    def _hold(self, held: HeldCall, data: memoryview) -> None:
        held.data += data
        self.num_held_bytes += len(data)

    def _is_in_bounds(self, held: HeldCall) -> bool:
        """Whether this connection alone is no reason to have a call wait."""
        num_fresh = len(self._fresh) - self._num_spared
        if not self._takes_window and not self._gate.may_queue(num_fresh):
            return False
        num_own = self.num_calls
        return not num_own or (
            num_own < self._most_calls
            and (
                self._num_header_bytes + held.num_header_bytes <= _MOST_HEADER_BYTES
                or self._is_pressed
            )
        )

    def _is_ready(self, held: HeldCall) -> bool:
        """Whether the first call that waits could begin, as far as its connection goes."""
        # grpcio may have the beginning of another frame.
        is_between = not self._num_left or self._target is not None
        return (
            is_between and held.is_whole and (held.is_reset or self._is_in_bounds(held))
        )

    def _may_begin(self, held: HeldCall) -> bool:
        first = next(iter(self._held.values()), held)
        if first is not held or not self._is_ready(held):
            return False
        return held.is_reset or self._is_pressed or self._gate.may_begin(self.num_calls)

    def _let_in(self, held: HeldCall) -> bytes | bytearray:
        """Returns what grpcio gets of a call that begins, or that never will."""
        del self._held[held.stream_id]
        self.num_held_bytes -= len(held.data)
        self._num_body_bytes -= held.num_body_bytes
        # What is missing of its last frame follows.
        if self._target is held:
            self._target = None
        if self._block is held:
            self._block = None
        block = held.block()
        is_sent = held.is_sent or held.ends_stream
        if held.is_reset:
            self._num_given_up -= 1
            self._heads.skip(block)
            return held.body()
        try:
            head = self._heads.read(block)
        except RefusedHead as refusal:
            self._refuse(held.stream_id, refusal, is_sent)
            return held.body()
        self._count(held.stream_id, head.num_bytes, is_sent)
        return held.opened(head.block)

    def _end_by_headers(self, block: HeldCall) -> bytes:
        """Returns what grpcio gets of headers behind a request."""
        self._target = None
        self.num_held_bytes -= len(block.data)
        stream_id = block.stream_id
        try:
            self._heads.read_trailers(block.block())
            if not block.ends_stream:
                raise RefusedHead(ErrorCode.PROTOCOL_ERROR)
        except RefusedHead as refusal:
            if stream_id not in self._open:
                return b""
            self._refuse(stream_id, refusal)
            self._reset(stream_id)
            return rst_stream(stream_id, refusal.code)
        if stream_id not in self._open:
            return b""
        self._note_sent(stream_id)
        return frame(FrameType.DATA, END_STREAM, stream_id)

    def _refuse(
        self, stream_id: int, refusal: RefusedHead, is_sent: bool = False
    ) -> None:
        """Tells the client that its request is not taken; ``is_sent`` if all of it came."""
        self._note_reset()
        answer = refusal.answer
        if answer is None or not self._may_answer:
            self._on_refused(rst_stream(stream_id, refusal.code))
            return
        flags = END_HEADERS | END_STREAM
        sent = frame(FrameType.HEADERS, flags, stream_id, refusal_block(answer))
        if not is_sent:
            sent += rst_stream(stream_id, ErrorCode.NO_ERROR)
        self._on_refused(sent)

    def _note_settings(self, payload: bytes, num_bytes: int) -> None:
        """Notes settings after which headers of ours could break those of grpcio.

        Where a client wants a smaller table, the next block has to begin with its size,
        and only grpcio knows what its own blocks assume. A client whose settings did not
        come in one piece may have asked for that.
        """
        is_known = (
            len(payload) == num_bytes <= _MOST_SETTINGS_BYTES
            and not num_bytes % _SETTING_BYTES
        )
        if not is_known or any(
            key == Setting.HEADER_TABLE_SIZE and value < DEFAULT_TABLE_SIZE
            for key, value in parse_settings(payload)
        ):
            self._may_answer = False

    def _count(self, stream_id: int, num_header_bytes: int, is_sent: bool) -> None:
        self._gate.begin()
        self._open[stream_id] = num_header_bytes
        self._gate.num_queuing += not self._fresh
        self._fresh[stream_id] = self._looked_s
        if not is_sent:
            self._unsent.add(stream_id)
        self._num_header_bytes += num_header_bytes

    def _reset(self, stream_id: int) -> None:
        self._num_header_bytes -= self._open.pop(stream_id)
        self._note_sent(stream_id)
        if stream_id in self._fresh:
            self._dead.add(stream_id)
            self._gate.reset(functools.partial(self._note_dropped, stream_id))
        else:
            self._gate.end()

    def _note_sent(self, stream_id: int) -> None:
        """Notes that a client sends no more of a request."""
        self._unsent.discard(stream_id)
        self._hungry.discard(stream_id)

    def _note_dropped(self, stream_id: int) -> None:
        if stream_id in self._dead:
            self._forget_up_to(stream_id)
            self._on_gone()

    def _forget_up_to(self, stream_id: int) -> None:
        """Notes that grpcio has handed over, or dropped, the calls up to this one."""
        for each in list(self._fresh):
            del self._fresh[each]
            self._gate.end_fresh()
            if each in self._dead:
                self._dead.remove(each)
                self._gate.end()
            if each == stream_id:
                break
        self._gate.num_queuing -= not self._fresh


def _do_nothing() -> None:
    """Stands in for a connection that has ended."""


def _ignore(data: bytes) -> None:
    """Stands in for a connection that has ended."""
