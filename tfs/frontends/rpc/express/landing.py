"""Where the bytes that come next will lie: in the messages that they belong to.

Large messages come in DATA frames whose heads say little that could not be guessed:
streams take turns, and frames are of one length. So the next bytes are received
straight into the messages' own memory, with scratch for the heads in between, and the
heads are compared with what was guessed. That saves a copy of every byte, and most of
what parsing costs per frame.

A wrong guess costs what a right one saves: the bytes are put together again and parsed
like any others. What then lies in a message where it does not belong lies behind what
has arrived of it, and is overwritten. No message gets memory for a guess.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tfs.frontends.rpc.express.frames import HEAD_SIZE, FrameType, frame_head
from tfs.frontends.rpc.express.messages import MessageAssembler
from tfs.frontends.rpc.express.stream import Stream
from tfs.frontends.rpc.express.stream_state import OPENED

_MAX_FRAMES: Final = 64  # in one read: two buffers each; the kernel takes 1,024
_MAX_FORESEEN: Final = 256


class LandingScratch:
    """Memory for what comes between messages' bytes, and from when on to guess.

    One for all connections: one landing is under way at a time. Loop-confined.

    Attributes:
        heads: Room for frame heads.
        head_parts: The same, head by head.
        least_bytes: Fewer are not worth a guess.
        least_frame_bytes: Nor are frames with less payload.

    """

    __slots__ = ("_behind", "head_parts", "heads", "least_bytes", "least_frame_bytes")

    def __init__(
        self, least_bytes: int = 32_768, least_frame_bytes: int = 4096
    ) -> None:
        self.least_bytes = least_bytes
        self.least_frame_bytes = least_frame_bytes
        self.heads = memoryview(bytearray(_MAX_FRAMES * HEAD_SIZE))
        self.head_parts = [
            self.heads[index * HEAD_SIZE : (index + 1) * HEAD_SIZE]
            for index in range(_MAX_FRAMES)
        ]
        self._behind = memoryview(b"")

    def behind(self, num_bytes: int) -> memoryview:
        """Returns that much room for what comes behind the frames foreseen."""
        if len(self._behind) < num_bytes:
            self._behind = memoryview(bytearray(num_bytes))
        return self._behind[:num_bytes]


class FrameOrder:
    """Which DATA frames came last, and so which may come next. Loop-confined.

    Attributes:
        frame_bytes: The payload of the last one.
        ids: The streams of the last ones, the newest last.

    """

    __slots__ = ("frame_bytes", "ids")

    def __init__(self) -> None:
        self.frame_bytes = 0
        self.ids: Sequence[int] = ()

    def cycle(self, begun_id: int) -> list[int]:
        """Returns the streams whose frames come next, in turn; each is in it once.

        Args:
            begun_id: Whose frame has arrived in part; 0 if there is none.

        """
        seen = [*self.ids, begun_id] if begun_id else list(self.ids)
        if seen:
            # It goes round: what followed the last one follows it again.
            for index in range(len(seen) - 2, -1, -1):
                if seen[index] == seen[-1]:
                    seen = seen[index + 1 :]
                    break
        return list(dict.fromkeys(seen))


class Landing:
    """One guess, for as long as it proves right. Loop-confined.

    Made once for many reads: each asks for :meth:`parts`, receives, and says how much
    came, :meth:`take`. Streams are credited with whole frames; what there is of the
    next one then, when the guess is given up, :meth:`leave`.

    Attributes:
        behind: What came behind the frames foreseen, or instead of them; not empty
            only after the last :meth:`take`.
        is_over: Whether nothing more is foreseen.
        is_wrong: Whether most of the frames last taken were not those foreseen.

    Args:
        scratch: What all share.
        order: What came before; kept up to date.
        streams: The live ones.
        begun_id: Whose frame has arrived in part; 0 if there is none.
        begun_left: What has not come of its payload, padding and the end of a stream
            apart.

    """

    __slots__ = (
        "_begun",
        "_begun_left",
        "_bodies",
        "_cycle",
        "_expected",
        "_frame",
        "_frame_bytes",
        "_has_tail",
        "_head",
        "_lead",
        "_num_asked",
        "_offset",
        "_order",
        "_parts",
        "_scratch",
        "_step",
        "_stops_early",
        "behind",
        "is_over",
        "is_wrong",
    )

    def __init__(
        self,
        scratch: LandingScratch,
        order: FrameOrder,
        streams: Mapping[int, Stream],
        begun_id: int,
        begun_left: int,
    ) -> None:
        self.behind = b""
        self.is_over = False
        self.is_wrong = False
        self._scratch = scratch
        self._order = order
        self._parts: list[memoryview] = []
        self._num_asked = 0
        self._has_tail = False
        # The frame that has arrived in part, and the place of its rest.
        self._begun = streams.get(begun_id)
        self._begun_left = begun_left
        self._lead = memoryview(b"")
        # The frames foreseen: whose they are in turn, and the places of their payloads.
        self._cycle: list[Stream] = []
        self._bodies: list[memoryview] = []
        self._frame_bytes = order.frame_bytes
        self._step = HEAD_SIZE + order.frame_bytes
        self._expected = b""
        self._stops_early = True
        self._frame = 0  # the next one
        self._offset = 0  # what has come of it, its head included
        self._head = b""  # of it, while not all has come
        if begun_id:
            room = min(begun_left, _room_of(self._begun))
            if self._begun is None or room <= 0:
                self.is_over = True
                return
            self._lead = _assembler_of(self._begun).room(0, room)
            if room < begun_left:
                return  # its message ends, or has to grow
        if self._frame_bytes >= scratch.least_frame_bytes:
            self._foresee(
                [
                    stream
                    for stream_id in order.cycle(begun_id)
                    if (stream := streams.get(stream_id)) is not None
                ]
            )

    def _foresee(self, cycle: list[Stream]) -> None:
        """Finds the place of every frame until a message ends, or has to grow."""
        size = self._frame_bytes
        num_turns = len(cycle)
        num = _MAX_FORESEEN
        begins = [len(self._lead) if stream is self._begun else 0 for stream in cycle]
        for position, stream in enumerate(cycle):
            num_own = max(0, _room_of(stream) - begins[position]) // size
            num = min(num, num_own * num_turns + position)
        if not cycle or not num:
            return
        bodies = [self._lead] * num
        for position, stream in enumerate(cycle):
            num_own = (num - position + num_turns - 1) // num_turns
            if num_own > 0:
                own = _assembler_of(stream).room(begins[position], num_own * size)
                bodies[position::num_turns] = [
                    own[at : at + size] for at in range(0, num_own * size, size)
                ]
        heads = [frame_head(FrameType.DATA, 0, stream.id, size) for stream in cycle]
        self._cycle = cycle
        self._bodies = bodies
        self._expected = b"".join(heads) * (_MAX_FRAMES // num_turns + 2)
        self._stops_early = num < _MAX_FORESEEN

    @property
    def num_bytes(self) -> int:
        """How much is foreseen."""
        return len(self._lead) + len(self._bodies) * self._step

    def concerns(self, stream: Stream) -> bool:
        """Tells whether bytes of that stream are foreseen."""
        return stream is self._begun or stream in self._cycle

    def parts(self, max_bytes: int) -> list[memoryview]:
        """Returns where the next bytes go, in order; empty if not worth it any more.

        Args:
            max_bytes: No more than that, nor than the client may send.

        """
        if self.is_over or not all(map(is_read, self._cycle)):
            return []
        if self._begun is not None and not is_read(self._begun):
            return []
        lead = self._lead[:max_bytes]
        parts = [lead] if lead else []
        max_bytes -= len(lead)
        self._num_asked = 0
        self._has_tail = False
        if len(lead) == len(self._lead):
            parts += self._parts_of_frames(max_bytes)
            left = max_bytes + self._offset - self._num_asked * self._step
            num_left = len(self._bodies) - self._frame - self._num_asked
            if left > 0 and not num_left and self._stops_early:
                self._has_tail = True
                parts.append(self._scratch.behind(left))
        self._parts = parts
        return parts

    def _parts_of_frames(self, max_bytes: int) -> list[memoryview]:
        scratch = self._scratch
        first, offset = self._frame, self._offset
        bodies = self._bodies[first : first + _MAX_FRAMES]
        num, left = divmod(max_bytes + offset, self._step)
        if num < len(bodies):
            del bodies[num + 1 :]
            bodies[num] = bodies[num][: max(0, left - HEAD_SIZE)]
            if left <= HEAD_SIZE or (num == 0 and left <= offset):
                bodies.pop()
        num = self._num_asked = len(bodies)
        parts = bodies * 2
        parts[0::2] = scratch.head_parts[:num]
        parts[1::2] = bodies
        if not num:
            return parts
        if offset >= HEAD_SIZE:
            # As if it had come now: heads are compared together.
            begin = first % len(self._cycle) * HEAD_SIZE
            scratch.heads[:HEAD_SIZE] = self._expected[begin : begin + HEAD_SIZE]
            del parts[0]
            parts[0] = parts[0][offset - HEAD_SIZE :]
        elif offset:
            scratch.heads[:offset] = self._head
            parts[0] = parts[0][offset:]
        return parts

    def take(self, num_bytes: int) -> int:
        """Takes note that so many bytes have been put into the parts.

        Empties their list. Returns the payload that streams were credited with.
        """
        payload_bytes = 0
        if self._begun is not None:
            payload_bytes = min(num_bytes, len(self._lead))
            credit(self._begun, payload_bytes)
            self._lead = self._lead[payload_bytes:]
            self._begun_left -= payload_bytes
            num_bytes -= payload_bytes
            if self._begun_left:
                if not self._lead:
                    self._end(num_bytes)
                self._parts.clear()
                return payload_bytes
            self._begun = None
        position = self._offset + num_bytes
        step = self._step
        num_whole = min(position // step, self._num_asked)
        left = position - num_whole * step
        is_begun = num_whole < self._num_asked
        num_heads = num_whole + (is_begun and left >= HEAD_SIZE)
        num_right = self._count_right(num_heads)
        num_done = min(num_whole, num_right)
        self._credit_frames(num_done)
        self._frame += num_done
        self._offset = 0
        self._head = b""
        if num_right < num_heads:
            self.is_wrong = 2 * num_right < num_heads
            self.is_over = True
            self.behind = self._gather(num_right, position - num_right * step)
        elif is_begun:
            self._offset = left
            if left < HEAD_SIZE:
                begin = num_whole * HEAD_SIZE
                self._head = bytes(self._scratch.heads[begin : begin + left])
        elif left or self._frame == len(self._bodies):
            self._end(left)
        self._parts.clear()
        return payload_bytes + num_done * self._frame_bytes

    def _end(self, num_behind: int) -> None:
        self.is_over = True
        if num_behind:
            self.behind = bytes(self._parts[-1][:num_behind])

    def _count_right(self, num_heads: int) -> int:
        """Returns how many heads are as foreseen, before the first that is not."""
        if not num_heads:
            return 0
        end = num_heads * HEAD_SIZE
        begin = self._frame % len(self._cycle) * HEAD_SIZE
        came = bytes(self._scratch.heads[:end])
        expected = self._expected[begin : begin + end]
        if came == expected:
            return num_heads
        return next(at for at in range(end) if came[at] != expected[at]) // HEAD_SIZE

    def _credit_frames(self, num: int) -> None:
        num_turns = len(self._cycle)
        if num:
            every, more = divmod(num, num_turns)
            at = self._frame % num_turns
            for position, stream in enumerate(self._cycle):
                num_own = every + ((position - at) % num_turns < more)
                if num_own:
                    credit(stream, num_own * self._frame_bytes)

    def _gather(self, index: int, num_bytes: int) -> bytes:
        """Returns what has come from the head of that frame of a read on."""
        begin = len(self._parts) - self._has_tail - 2 * (self._num_asked - index)
        pieces = self._parts[begin:]
        pieces[0] = self._scratch.head_parts[index]  # what came of it before, too
        return b"".join(pieces)[:num_bytes]

    def leave(self) -> tuple[Stream | None, int, int, bytes]:
        """Gives up; returns the state of affairs.

        Returns:
            Whose frame has arrived in part, what has not come of its payload, what has
            come that it was not credited with; and what has come of the next head.

        """
        self.is_over = True
        cycle = self._cycle
        if cycle:
            at = self._frame % len(cycle)
            ids = [stream.id for stream in cycle]
            self._order.ids = ids[at:] + ids[:at]
        if self._begun is not None:
            return self._begun, self._begun_left, 0, b""
        came = self._offset - HEAD_SIZE
        if came < 0:
            return None, 0, 0, self._head
        return cycle[at], self._frame_bytes - came, came, b""


def credit(stream: Stream, num_bytes: int) -> None:
    """Takes note of bytes that were put in place in the message of a stream."""
    _assembler_of(stream).landed(num_bytes)
    stream.held_bytes += num_bytes
    stream.received_bytes += num_bytes


def _assembler_of(stream: Stream) -> MessageAssembler:
    assembler = stream.assembler
    assert assembler is not None  # it has room
    return assembler


def is_read(stream: Stream) -> bool:
    """Tells whether anybody reads what arrives on a stream."""
    return stream.state is OPENED and stream.end_block is None


def _room_of(stream: Stream | None) -> int:
    """Returns how much may come to a message in place, short of its end."""
    if stream is None or stream.assembler is None or not is_read(stream):
        return 0
    return stream.assembler.room_bytes
