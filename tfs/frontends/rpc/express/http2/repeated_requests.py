"""Takes whole requests that begin like the last one, in one go.

A client sends the same frames for each of its requests, except for the stream's id and
the message: HEADERS with a block that is in the cache, a WINDOW_UPDATE of the stream
(if the client uses grpc's own library), then DATA. The beginning of the last request is
kept, split at the stream's id (:class:`RequestOpening`), so that the next one is
recognized by one comparison of bytes rather than field by field. Faults of the frames
themselves were looked for the first time. What depends on the connection's state is
checked every time.

The effect is the same as that of :mod:`~tfs.frontends.rpc.express.http2.frame_intake`
and ``stream_intake``. Any request for which a condition does not hold is left to these,
and errors above all.
"""

from __future__ import annotations

import abc
from struct import Struct
from typing import Final

from tfs.frontends.rpc.express.http2.connection_context import ConnectionContext
from tfs.frontends.rpc.express.http2.frame_intake import TINY_INCREMENT, FrameIntake
from tfs.frontends.rpc.express.http2.messages import PREFIX_SIZE
from tfs.frontends.rpc.express.http2.request_opening import (
    UPDATE,
    UPDATE_WORD,
    RequestOpening,
)
from tfs.frontends.rpc.express.http2.stream import Stream
from tfs.frontends.rpc.express.http2.stream_state import OPENED, REQUESTED
from tfs.frontends.rpc.frames import (
    END_STREAM,
    LARGEST_WINDOW,
    pack_uint32,
)

# The head of a DATA frame, and the prefix of the message in it.
_MESSAGE_HEAD: Final = Struct(">IBIBI")
_unpack_message_head = _MESSAGE_HEAD.unpack_from
_unpack_update = UPDATE.unpack_from


class RepeatedRequests(FrameIntake, abc.ABC):
    """Takes requests that begin as the one before did. Confined to the serving loop.

    A base of :class:`~tfs.frontends.rpc.express.http2.connection.Connection`.

    Attributes:
        is_closed: Whether the connection takes nothing more in.

    Args:
        context: The events, budget, limits and buffers that it uses.

    """

    __slots__ = ("_num_tiny_updates", "_opening", "is_closed")

    def __init__(self, context: ConnectionContext) -> None:
        super().__init__(context)
        self.is_closed = False
        self._num_tiny_updates = 0
        self._opening: RequestOpening | None = None  # that of the last request

    def _take_repeated(
        self,
        opening: RequestOpening,
        data: bytes,
        index: int,
        size: int,
        most: int,
        most_updates: int,
    ) -> tuple[int, int, int]:
        """Takes whole requests that begin alike, up to the first that does not.

        If a WINDOW_UPDATE of the connection follows a request, it is taken as well:
        clients send it for the answer before.

        Args:
            opening: How they begin.
            data: Bytes received.
            index: Offset of a frame; any frame may come there.
            size: Length of ``data``.
            most: How many requests may be taken.
            most_updates: How many WINDOW_UPDATEs of the connection may be taken.

        Returns:
            The index behind what was taken, and how many requests and updates that was.

        """
        # If HPACK's table changes, an equal block may mean another head.
        if self._openings.get(opening.block) is not opening:
            return index, 0, 0
        increment = opening.increment
        send_window = self._peer.initial_window
        if increment > LARGEST_WINDOW - send_window:
            return index, 0, 0
        head, parts, opening_size = opening.head, opening.parts, opening.size
        announced = head.content_length
        table, streams = self._table, self.streams
        events, window, limits = self._events, self._window, self._limits
        # No stream is reset meanwhile, so the number of calls cut off stays the same.
        max_streams = min(
            limits.max_concurrent_streams - self.num_cut_off,
            self._budget.max_streams_each,
        )
        self._opening = opening
        num_taken = num_updates = 0
        while num_taken < most:
            stream_id = table.last_id + 2
            begin = index + opening_size
            payload = begin + _MESSAGE_HEAD.size
            if payload > size or not data.startswith(
                pack_uint32(stream_id).join(parts), index
            ):
                break
            word, flags, data_id, flag, body = _unpack_message_head(data, begin)
            length = body + PREFIX_SIZE
            end = payload + body
            if (
                word != length << 8
                or data_id != stream_id
                or flags != END_STREAM
                or flag != 0
                or end > size
                or length > window.size
                or body > self._max_request_bytes
                or (announced is not None and announced != length)
                or stream_id > table.last_accepted_id
                or len(streams) >= max_streams
                or self.queued_bytes > limits.max_queued_bytes
            ):
                break
            num_taken += 1
            table.last_id = stream_id
            stream = streams[stream_id] = Stream(
                stream_id, head, OPENED, send_window, self._now_s
            )
            events.on_open(stream)
            if stream.state is not OPENED or self.is_closed:
                return index + opening.head_size, num_taken, num_updates
            stream.send_window += increment
            self._num_tiny_updates += 0 < increment < TINY_INCREMENT
            window.size -= length
            stream.held_bytes = length
            stream.received_bytes = length
            stream.state = REQUESTED
            events.on_request(stream, data[payload:end])
            index = end
            if self.is_closed:
                break
            if num_updates < most_updates and index + UPDATE.size <= size:
                word, flags, data_id, update = _unpack_update(data, index)
                if (
                    word == UPDATE_WORD
                    and data_id == 0
                    and 0 < update <= LARGEST_WINDOW - self._send_window
                ):
                    self._send_window += update
                    self._num_tiny_updates += update < TINY_INCREMENT
                    num_updates += 1
                    index += UPDATE.size
        return index, num_taken, num_updates
