"""One client's HTTP/2 connection, without a socket (RFC 9113, gRPC over HTTP/2).

Bytes go in through :meth:`Connection.receive`. What they mean comes out as calls of a
:class:`ConnectionEvents`, in order and on the same stack. What is to be sent collects
in the sender's ``out``. The caller owns the socket, the clock and the calls.

The connection decides which frame is next and who takes it:

    Sender         answers and their flow control, the end of streams
    HeadIntake     header blocks: requests that begin, and trailers
    DataIntake     DATA: messages and the windows of streams
    ControlFrames  all other frames

There are two ways to take a request. By the book, each frame's head is checked, and the
table of stream states says what the frame does. The other way is a shortcut for what
ordinary clients send, for which the result of each check is known beforehand: a head
that the cache knows, a message that is whole in one DATA frame that ends its stream, and
WINDOW_UPDATEs without fault, of which two follow each answer. Any frame for which one of
the conditions does not hold is taken by the book, and errors above all.

A peer that breaks the rules loses its connection and harms nobody else: ``receive``
does not raise for anything that the peer sends, but queues GOAWAY and sets
``is_closed``. Exceptions raised by the events object do pass through.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NoReturn

from tfs.core.errors import forget_frames
from tfs.frontends.budget import MemoryBudget
from tfs.frontends.http2 import frames, response
from tfs.frontends.http2.control_frames import TINY_INCREMENT, ControlFrames
from tfs.frontends.http2.data_intake import DataIntake
from tfs.frontends.http2.frames import (
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    HEAD_SIZE,
    LARGEST_WINDOW,
    PADDED,
    PREFACE,
    ConnectionFault,
    ErrorCode,
    FrameType,
    Setting,
    unpack_head,
    unpack_uint32,
)
from tfs.frontends.http2.head_intake import HeadIntake
from tfs.frontends.http2.sender import Sender
from tfs.frontends.http2.state import (
    WORK_PER_REQUEST,
    ConnectionEvents,
    ConnectionLimits,
    ConnectionState,
)
from tfs.frontends.http2.stream import PREFIX_SIZE, STREAM_BYTES, Stream, StreamState

_unpack_prefix = Struct(">BI").unpack_from
# Looked up in the enum, these take longer.
_OPEN: Final = StreamState.OPEN
_REQUESTED: Final = StreamState.REQUESTED

_DRAIN_PING: Final = b"tfsdrain"
_KEEPALIVE_PING: Final = b"tfsalive"

# The connection's window is raised again after half of it was used.
_HALF_WINDOW: Final = 1 << 30


class Connection:
    """The state of one connection. Confined to the serving loop.

    Attributes:
        control: Takes in frames about the connection and its windows.
        data: Takes in DATA.
        heads: Takes in header blocks.
        sender: Sends answers.
        streams: The live streams by id.
        state: What its parts share.
        is_draining: Whether the client was told that no new streams are wanted.
        fault: Why the peer was cut off, if it was.

    Args:
        events: Is told what the peer does.
        budget: The server's.
        limits: What the peer may ask.
        begun_s: When the connection was accepted, by the loop's clock.

    """

    __slots__ = (
        "_has_greeted",
        "_num_tiny_updates",
        "_rest",
        "_rest_since_s",
        "_saw_preface",
        "control",
        "data",
        "fault",
        "heads",
        "is_draining",
        "sender",
        "state",
        "streams",
    )

    def __init__(
        self,
        events: ConnectionEvents,
        budget: MemoryBudget,
        limits: ConnectionLimits,
        begun_s: float,
    ) -> None:
        state = self.state = ConnectionState(events, budget, limits, begun_s)
        self.sender: Sender = state.sender
        self.streams = state.streams
        self.data = DataIntake(state)
        self.heads = HeadIntake(state, self.data)
        self.control = ControlFrames(state)
        self.fault: ConnectionFault | None = None
        self.is_draining = False
        self._rest = b""  # bytes received but not parsed yet
        self._rest_since_s = begun_s
        self._saw_preface = False
        # Our preface waits for the client's, because a client that speaks HTTP/1 gets
        # an answer in HTTP/1 instead.
        self._has_greeted = False
        self._num_tiny_updates = 0

    # -- what the owner asks ----------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended.

        It has by a GOAWAY with an error, or because its drain is over. The owner then
        sends what is in the sender's ``out`` and closes the socket.
        """
        return self.state.is_closed

    @property
    def is_established(self) -> bool:
        """Whether the client's preface and SETTINGS arrived."""
        return self.control.saw_settings

    @property
    def stuck_since_s(self) -> float | None:
        """When the unfinished header block or frame (not DATA) began; None without."""
        if self.heads.stream_id:
            return self.heads.since_s
        return self._rest_since_s if self._rest else None

    @property
    def unfinished_bytes(self) -> int:
        """What is kept of frames and header blocks that are not whole."""
        return len(self._rest) + self.heads.unfinished_bytes

    # -- receiving ----------------------------------------------------------------------

    def receive(self, data: bytes, now_s: float) -> bool:
        """Takes bytes from the peer; empty bytes continue after it has returned True.

        Returns:
            Whether bytes are left because the limit of work per round was reached. If so,
            call it again in the next round, with no new bytes.

        """
        state = self.state
        if state.is_closed:
            return False
        state.now_s = now_s
        state.work_left = state.limits.max_requests_per_round * WORK_PER_REQUEST
        rest = self._rest
        if rest:
            data = rest + data
        index = 0
        try:
            if not self._saw_preface:
                index = self._take_preface(data)
            if self._saw_preface:
                index = self._take_frames(data, index)
                if self._num_tiny_updates:
                    num, self._num_tiny_updates = self._num_tiny_updates, 0
                    state.count_nuisance("tiny WINDOW_UPDATE", num)
            if state.is_closed:
                return False
            if index or not rest:
                self._rest_since_s = now_s
            if rest or index < len(data):
                self._keep(data[index:])
        except ConnectionFault as fault:
            self.terminate(fault)
            return False
        if self.data.received_bytes > _HALF_WINDOW:
            update = frames.window_update(0, self.data.received_bytes)
            self.data.received_bytes = 0
            self.sender.out.append(update)
        return state.work_left <= 0 and index < len(data)

    def _keep(self, rest: bytes) -> None:
        """Keeps bytes that are no whole frame."""
        budget = self.state.budget
        more_bytes = len(rest) - len(self._rest)
        if more_bytes > 0 and not budget.has_room(more_bytes):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "no room for frames")
        self._rest = rest
        budget.release(-more_bytes)

    def _take_frames(self, data: bytes, index: int) -> int:
        """Takes frames until no whole one is left, or the limit of work is reached.

        Returns the index behind what was taken.

        Raises:
            ConnectionFault: The peer broke a rule.

        """
        size = len(data)
        state, intake, heads = self.state, self.data, self.heads
        control = self.control
        while state.work_left > 0 and not state.is_closed:
            if intake.stream_id:
                index = intake.go_on(data, index, size)
                if intake.stream_id and index == size:
                    break
                continue
            if size - index < HEAD_SIZE:
                break
            behind = index
            # Within a header block, and before SETTINGS, no other frame may come.
            if not heads.stream_id and control.saw_settings:
                frame_type = data[index + 3]
                if frame_type == 0:
                    behind = self._take_messages(data, index, size)
                elif frame_type == 1:
                    behind = self._take_heads(data, index, size)
                elif frame_type == 8:
                    behind = self._take_updates(data, index, size)
            if behind == index:
                behind = self._take_by_the_book(data, index, size)
                if behind == index:
                    break
            index = behind
        return index

    def _take_heads(self, data: bytes, index: int, size: int) -> int:
        """Takes HEADERS whose blocks the cache knows, while such follow each other."""
        state = self.state
        heads, streams, table = self.heads.heads, self.streams, state.table
        events, window = state.events, self.sender.initial_window
        most = state.limits.max_concurrent_streams - state.num_cut_off
        budget, now_s = state.budget, state.now_s
        if not budget.has_room(0):
            return index
        while state.work_left > 0 and size - index >= HEAD_SIZE:
            word, flags, stream_id = unpack_head(data, index)
            begin = index + HEAD_SIZE
            end = begin + (word >> 8)
            if word & 0xFF != 1 or flags != END_HEADERS or end > size:
                break
            head = heads.get(data[begin:end])
            if (
                head is None
                or not stream_id & 1
                or not table.last_id < stream_id <= table.last_accepted_id
                or len(streams) >= most
            ):
                break
            state.work_left -= 1
            table.last_id = stream_id
            stream = streams[stream_id] = Stream(stream_id, head, _OPEN, window, now_s)
            budget.used_bytes += STREAM_BYTES
            index = end
            events.on_open(stream)
            if state.is_closed:
                break
        return index

    def _take_messages(self, data: bytes, index: int, size: int) -> int:
        """Takes DATA frames with whole requests, or from the middle of long ones."""
        state, intake, budget = self.state, self.data, self.state.budget
        streams, events = self.streams, state.events
        most_bytes = min(intake.max_request_bytes, budget.window_bytes - PREFIX_SIZE)
        while state.work_left > 0 and size - index >= HEAD_SIZE + PREFIX_SIZE:
            word, flags, stream_id = unpack_head(data, index)
            length = word >> 8
            begin = index + HEAD_SIZE
            end = begin + length
            stream = streams.get(stream_id)
            if word & 0xFF or stream is None or stream.state is not _OPEN:
                break
            if flags != END_STREAM or stream.upload is not None:
                index = intake.take_middles(data, index, size)
                break
            flag, body = _unpack_prefix(data, begin)
            announced = stream.head.content_length
            if (
                end > size
                or flag
                or body != length - PREFIX_SIZE
                or body > most_bytes
                or (announced is not None and announced != length)
                or budget.used_bytes + length > budget.limit_bytes
            ):
                break
            state.work_left -= WORK_PER_REQUEST - 1
            budget.used_bytes += length
            intake.received_bytes += length
            stream.held_bytes += length
            stream.received_bytes = length
            stream.state = _REQUESTED
            index = end
            events.on_request(stream, data[begin + PREFIX_SIZE : end])
            if state.is_closed:
                break
        return index

    def _take_updates(self, data: bytes, index: int, size: int) -> int:
        """Takes WINDOW_UPDATEs without fault, for streams that are gone too."""
        state, streams, sender = self.state, self.streams, self.sender
        last_id = state.table.last_id
        while state.work_left > 0 and size - index >= HEAD_SIZE + 4:
            word, _, stream_id = unpack_head(data, index)
            if word != 4 << 8 | 8:
                break
            increment = unpack_uint32(data, index + HEAD_SIZE)[0] & LARGEST_WINDOW
            if stream_id == 0:
                if not 0 < increment <= LARGEST_WINDOW - sender.window:
                    break
                sender.window += increment
            elif stream_id & 1 and stream_id <= last_id:
                stream = streams.get(stream_id)
                if stream is not None:  # otherwise it is closed, and this ignored
                    if not 0 < increment <= LARGEST_WINDOW - stream.send_window:
                        break
                    stream.send_window += increment
            else:
                break
            state.work_left -= 1
            self._num_tiny_updates += increment < TINY_INCREMENT
            index += HEAD_SIZE + 4
        return index

    def _take_by_the_book(self, data: bytes, index: int, size: int) -> int:
        """Takes any frame; returns the index behind it, or the same if it is not whole."""
        word, flags, stream_id = unpack_head(data, index)
        length, frame_type = word >> 8, word & 0xFF
        stream_id &= LARGEST_WINDOW  # without the reserved bit
        payload = index + HEAD_SIZE
        self._check_head(frame_type, flags, stream_id, length)
        if frame_type == FrameType.DATA:
            if flags & PADDED and length and payload >= size:
                return index  # the pad length has not arrived
            self.state.work_left -= 1
            return self.data.begin(data, payload, flags, stream_id, length)
        end: int = payload + length
        if end > size:
            return index
        self.state.work_left -= 1
        if frame_type == FrameType.HEADERS:
            self.heads.on_headers(flags, stream_id, data[payload:end])
        elif frame_type == FrameType.CONTINUATION:
            self.heads.on_continuation(flags, data[payload:end])
        elif frame_type == FrameType.PING and flags & frames.ACK:
            self._on_pong(data[payload:end])
        else:
            self.control.on_frame(frame_type, flags, stream_id, data[payload:end])
        return end

    def _check_head(
        self, frame_type: int, flags: int, stream_id: int, length: int
    ) -> None:
        """Checks what a frame's head says, before the payload has arrived.

        Raises:
            ConnectionFault: It is too long, malformed, or out of order.

        """
        if length > self.state.limits.max_frame_size:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "frame too large")
        frames.check_head(frame_type, flags, stream_id, length)
        if not self.control.saw_settings and frame_type != FrameType.SETTINGS:
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, "SETTINGS must be the first frame"
            )
        block_id = self.heads.stream_id
        if block_id and (frame_type != FrameType.CONTINUATION or stream_id != block_id):
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, "a header block was left unfinished"
            )
        if not block_id and frame_type == FrameType.CONTINUATION:
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, "CONTINUATION of no header block"
            )
        # Only DATA is taken as it arrives. Any other frame waits in memory until it is
        # whole.
        if frame_type != FrameType.DATA and length > self.heads.largest_bytes:
            raise ConnectionFault(
                ErrorCode.ENHANCE_YOUR_CALM, "header or control frame too large"
            )

    # -- the beginning ------------------------------------------------------------------

    def _take_preface(self, data: bytes) -> int:
        """Returns the index behind the client's preface; 0 if it is incomplete."""
        if len(data) < len(PREFACE):
            if not PREFACE.startswith(data):
                self._reject_preface(data)
            return 0
        if not data.startswith(PREFACE):
            self._reject_preface(data)
        self._saw_preface = True
        self._greet()
        return len(PREFACE)

    def _reject_preface(self, data: bytes) -> NoReturn:
        if data[:1].isalpha() and not PREFACE.startswith(data[:4]):
            self.sender.out.append(response.HTTP_1_ANSWER)
            self.state.is_closed = True
            raise ConnectionFault(ErrorCode.HTTP_1_1_REQUIRED, "client speaks HTTP/1")
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "no HTTP/2 preface")

    def _greet(self) -> None:
        """Queues our preface, which is SETTINGS (RFC 9113 section 3.4), once."""
        if self._has_greeted:
            return
        self._has_greeted = True
        limits = self.state.limits
        settings = {
            Setting.MAX_CONCURRENT_STREAMS: limits.max_concurrent_streams,
            Setting.INITIAL_WINDOW_SIZE: self.state.budget.window_bytes,
            Setting.MAX_FRAME_SIZE: limits.max_frame_size,
            Setting.MAX_HEADER_LIST_SIZE: limits.max_header_list_bytes,
        }
        self.sender.out.append(
            frames.settings(settings)
            + frames.window_update(0, LARGEST_WINDOW - DEFAULT_WINDOW)
        )

    # -- the end ------------------------------------------------------------------------

    def begin_drain(self) -> None:
        """Announces that no new streams are wanted (GOAWAY), in two steps.

        The first GOAWAY still accepts everything, because requests may be under way.
        The PING that follows is answered once the client has seen the GOAWAY, and then
        :meth:`finish_drain` draws the line. The owner calls that too, after some time.
        """
        if self.is_draining or self.is_closed:
            return
        self.is_draining = True
        self._greet()
        out = self.sender.out
        out.append(frames.goaway(LARGEST_WINDOW, ErrorCode.NO_ERROR, "draining"))
        out.append(frames.ping(_DRAIN_PING))

    def finish_drain(self) -> None:
        """Accepts no stream beyond those seen; idempotent."""
        table = self.state.table
        if self.is_closed or table.last_accepted_id != LARGEST_WINDOW:
            return
        self.is_draining = True
        table.last_accepted_id = table.last_id
        self.sender.out.append(
            frames.goaway(table.last_id, ErrorCode.NO_ERROR, "draining")
        )

    @property
    def is_drained(self) -> bool:
        """Whether ``finish_drain`` has drawn the line and every stream has ended."""
        return self.state.table.last_accepted_id != LARGEST_WINDOW and not self.streams

    def ping(self) -> None:
        """Asks the client for a sign of life."""
        self.sender.out.append(frames.ping(_KEEPALIVE_PING))

    def _on_pong(self, payload: bytes) -> None:
        if payload == _DRAIN_PING and self.is_draining:
            self.finish_drain()
        else:
            self.state.count_nuisance("ignored frames", 2)

    def terminate(self, fault: ConnectionFault) -> None:
        """Ends the connection because of ``fault``: sends GOAWAY and drops every stream."""
        if not self.is_closed:
            self._greet()
            self.sender.out.append(
                frames.goaway(self.state.table.last_id, fault.code, fault.reason)
            )
        if self.fault is None:
            # They refer to the owner, and this object keeps the fault.
            forget_frames(fault)
            self.fault = fault
        self.close()

    def close(self) -> None:
        """Forgets every stream (each brings ``on_reset``) and what it counts; idempotent.

        Afterwards it makes no more calls to its owner, and refers to it no longer.
        Otherwise the two would keep each other alive, with all that they hold, until
        the garbage collector runs.
        """
        self.state.close()
        rest, self._rest = self._rest, b""
        self.state.budget.release(len(rest))
        self.heads.forget()
