"""Takes in DATA: requests that do not come whole in one frame, and their flow control.

The windows of streams are what holds a client back. Each lets its client send a first
part of a message; a longer message gets a window for all the rest once it was admitted to
the server's budget. The connection's window is as wide as HTTP/2 allows, so that an
upload that waits holds up nothing else. What arrives without room is refused, and its
bytes are dropped.

Messages are copied out of the receive buffer. Rejected: receiving them straight into
their own memory (``recvmsg_into``), with scratch space for the heads of frames, whose
places have to be predicted if a client sends several streams in turn. That saves a copy
out of a buffer that lies in the core's cache, 17 us of the 500 that 602 KB take.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from tfs.core.errors import Internal, ServingError
from tfs.frontends.budget import used_up
from tfs.frontends.http2.frames import (
    DEFAULT_WINDOW,
    END_STREAM,
    HEAD_SIZE,
    PADDED,
    ConnectionFault,
    ErrorCode,
    unpack_head,
    unpack_uint32,
    window_update,
)
from tfs.frontends.http2.state import WORK_PER_REQUEST, ConnectionState
from tfs.frontends.http2.stream import PREFIX_SIZE, Signal, Stream, StreamState, Upload

_BITE: Final = 512  # bytes of a payload taken at a time, after its first message
_OPEN: Final = StreamState.OPEN  # a look-up in the enum takes longer


class DataIntake:
    """The DATA of one connection. Confined to the serving loop.

    Attributes:
        stream_id: The stream of a DATA frame of which only a part was taken; 0: of none.
        received_bytes: Bytes received for which the connection's window was not raised
            again; the owner resets it.
        max_request_bytes: The longest message taken, compressed or not.

    Args:
        state: The connection's.

    """

    __slots__ = (
        "_ends_stream",
        "_left",
        "_pad_left",
        "_state",
        "max_request_bytes",
        "received_bytes",
        "stream_id",
    )

    def __init__(self, state: ConnectionState) -> None:
        limits = state.limits
        self._state = state
        self._left = 0  # of the frame's payload
        self._pad_left = 0
        self.stream_id = 0
        self._ends_stream = False
        self.received_bytes = 0
        self.max_request_bytes = min(
            limits.max_message_bytes,
            limits.max_request_bytes,
            state.budget.largest_bytes,
        )

    def take_middles(self, data: bytes, index: int, size: int) -> int:
        """Takes whole DATA frames from the middle of messages that were admitted.

        Long uploads consist mostly of these. Any other frame is left to :meth:`begin`.
        Returns the index behind the frames taken.
        """
        state, streams = self._state, self._state.streams
        view = memoryview(data)
        while state.work_left > 0 and size - index >= HEAD_SIZE:
            word, flags, stream_id = unpack_head(data, index)
            length = word >> 8
            begin = index + HEAD_SIZE
            stream = streams.get(stream_id)
            if word & 0xFF or flags or begin + length > size or stream is None:
                break
            upload = stream.upload
            if (
                upload is None
                or not 0 < length <= upload.prepaid_bytes
                or length >= upload.missing_bytes
                or stream.state is not _OPEN
                or stream.end_block is not None
            ):
                break
            index = begin + length
            upload.append(view[begin:index])
            upload.prepaid_bytes -= length
            stream.received_bytes += length
            self.received_bytes += length
            state.work_left -= 1
        return index

    def begin(
        self, data: bytes, payload: int, flags: int, stream_id: int, length: int
    ) -> int:
        """Takes in a DATA frame's head; returns the index behind it."""
        state = self._state
        ends = bool(flags & END_STREAM)
        state.step(stream_id, Signal.DATA_END if ends else Signal.DATA)
        self.received_bytes += length
        pad = 0
        if flags & PADDED:
            if length == 0:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "no pad length")
            pad = data[payload]
            if pad >= length:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "padding too long")
            payload += 1
            length -= 1
            if stream_id in state.streams and not ends:
                state.sender.out.append(window_update(stream_id, pad + 1))
        if length == pad and not ends:
            state.count_nuisance("empty DATA", 5)
        self.stream_id = stream_id
        self._left = length - pad
        self._pad_left = pad
        self._ends_stream = ends
        return payload

    def go_on(self, data: bytes, index: int, size: int) -> int:
        """Takes what has arrived of the DATA frame that began; returns the new index.

        It takes only a few messages at a time, because one frame may hold fifty thousand
        messages of five bytes each.
        """
        stream_id = self.stream_id
        stream = self._state.streams.get(stream_id)
        count = min(size - index, self._left)
        if count > _BITE and stream is not None:
            count = _bite(stream, data, index, count)
        if count:
            self._left -= count
            if stream is not None:
                self._on_payload(stream, memoryview(data)[index : index + count])
            index += count
        if self._left == 0 and self._pad_left:
            count = min(size - index, self._pad_left)
            self._pad_left -= count
            index += count
        if self._left == 0 and self._pad_left == 0:
            self.stream_id = 0
            stream = self._state.streams.get(stream_id)
            if self._ends_stream and stream is not None:
                self.end(stream)
        return index

    def end(self, stream: Stream) -> None:
        """Notes that an open stream's client sends no more."""
        state = self._state
        stream.state = StreamState.REQUESTED
        if stream.end_block is not None:
            return  # answered already; the client's frames are still on their way
        announced = stream.head.content_length
        if announced is not None and announced != stream.received_bytes:
            state.reset_by_fault(stream.id, ErrorCode.PROTOCOL_ERROR)
        elif stream.is_inside_message:
            state.events.on_fault(
                stream, Internal("the request ended within a message")
            )
        else:
            state.events.on_end(stream)

    def let_send(self, stream: Stream) -> None:
        """Raises a stream's window, if little is left of it and no message waits."""
        upload, ticket = stream.upload, stream.ticket
        window = self._state.budget.window_bytes
        if upload is not None and stream.state is _OPEN:
            room = self._room(stream, upload)
            if 2 * room < window and (ticket is None or ticket.is_admitted):
                self._grant(stream, upload, window - room)

    def _on_payload(self, stream: Stream, chunk: memoryview) -> None:
        if stream.state is not _OPEN or stream.end_block is not None:
            return  # it was answered meanwhile, so nobody reads the rest
        state = self._state
        num_bytes = len(chunk)
        upload = stream.upload
        if upload is None:
            upload = stream.upload = Upload(self.max_request_bytes)
        stream.received_bytes += num_bytes
        if stream.received_bytes > DEFAULT_WINDOW + upload.granted_bytes:
            state.reset_by_fault(stream.id, ErrorCode.FLOW_CONTROL_ERROR)
            return
        more_bytes = num_bytes - upload.prepaid_bytes
        upload.prepaid_bytes = max(0, -more_bytes)
        if more_bytes > 0:
            if not state.budget.has_room(more_bytes):
                state.events.on_fault(stream, used_up())
                return
            state.budget.hold(stream, more_bytes)
        try:
            for is_compressed, message in upload.feed(chunk):
                state.work_left -= WORK_PER_REQUEST - 1
                state.budget.settle(stream)
                state.events.on_message(stream, message, is_compressed)
                if stream.id not in state.streams:
                    return
            if upload.missing_bytes and stream.ticket is None:
                self._ask_for_rest(stream, upload)
        except ServingError as error:
            state.events.on_fault(stream, error)

    def _room(self, stream: Stream, upload: Upload) -> int:
        """Returns how much the client may still send on a stream."""
        granted_bytes = self._state.budget.window_bytes + upload.granted_bytes
        return granted_bytes - stream.received_bytes

    def _ask_for_rest(self, stream: Stream, upload: Upload) -> None:
        """Lets the client send the rest of a message, now or once it is admitted."""
        missing_bytes = upload.missing_bytes
        room = self._room(stream, upload)
        if missing_bytes <= room:
            return
        state = self._state
        if upload.size_bytes + PREFIX_SIZE <= state.budget.window_bytes:
            self._grant(stream, upload, missing_bytes - room)  # a stream's later one
            return
        stream.ticket = state.budget.admit(
            state.account,
            state.budget.with_answer(missing_bytes),
            state.now_s,
            partial(self._on_admitted_later, stream),
        )
        if stream.ticket.is_admitted:
            self._on_admitted(stream, upload)

    def _on_admitted_later(self, stream: Stream) -> None:
        upload = stream.upload
        if upload is not None and stream.id in self._state.streams:
            self._on_admitted(stream, upload)
            self._state.events.on_output()

    def _on_admitted(self, stream: Stream, upload: Upload) -> None:
        upload.give_memory()
        missing_bytes = upload.prepaid_bytes = upload.missing_bytes
        self._grant(stream, upload, missing_bytes - self._room(stream, upload))

    def _grant(self, stream: Stream, upload: Upload, num_bytes: int) -> None:
        if num_bytes > 0:
            upload.granted_bytes += num_bytes
            self._state.sender.out.append(window_update(stream.id, num_bytes))


def _bite(stream: Stream, data: bytes, index: int, count: int) -> int:
    """Returns how much of a payload to take at once; all if it is one message."""
    upload = stream.upload
    if upload is not None and not upload.is_between_messages:
        first = upload.missing_bytes
    else:
        first = PREFIX_SIZE + unpack_uint32(data, index + 1)[0]
    return min(count, first + _BITE)
