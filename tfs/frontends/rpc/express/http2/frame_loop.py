"""The loop over a connection's frames, with shortcuts for most of the traffic.

Any frame may be taken the ordinary way: its head is checked, and the table of stream
states says what it does. The shortcuts take what ordinary clients send, for which the
result of each of these checks is known beforehand:

- whole requests that begin as the one before did (``repeated_requests``);
- a head that the cache knows, on a stream that may be opened;
- the only message of a request, whole and in one DATA frame that ends it;
- a WINDOW_UPDATE without fault, for streams that are gone too: two follow each answer.

They do what :mod:`~tfs.frontends.rpc.express.http2.frame_intake` and ``stream_intake``
would do. Any frame for which one of their conditions does not hold is left to these,
and errors above all. The last three are parts of one function. As functions of their
own, which have to look things up again, they would take half a microsecond more of the
ten that a small request costs.
"""

from __future__ import annotations

import abc
from struct import Struct
from typing import Final

from tfs.frontends.rpc.express.http2.connection_context import ConnectionContext
from tfs.frontends.rpc.express.http2.frame_intake import BLOCK_FRAMES, TINY_INCREMENT
from tfs.frontends.rpc.express.http2.messages import PREFIX_SIZE
from tfs.frontends.rpc.express.http2.patience import Annoyance
from tfs.frontends.rpc.express.http2.repeated_requests import RepeatedRequests
from tfs.frontends.rpc.express.http2.request_opening import read_opening
from tfs.frontends.rpc.express.http2.stream import Stream
from tfs.frontends.rpc.express.http2.stream_state import OPENED, REQUESTED
from tfs.frontends.rpc.frames import (
    END_HEADERS,
    END_STREAM,
    HEAD_SIZE,
    LARGEST_WINDOW,
    PADDED,
    FrameType,
    unpack_head,
    unpack_uint32,
)

_unpack_prefix = Struct(">BI").unpack_from

TINY_UPDATES_AT_ONCE: Final = 32
"""Tiny WINDOW_UPDATEs are charged to the client in groups of this many."""

# Other work also counts towards the limit of requests per round, so that the limit
# bounds time as well. Frames beyond the two of a request (grpc's own clients send five)
# take up to 3 us each. The bytes of a header block that has to be decoded take 0.2 us
# each if they are Huffman-coded.
_OTHERS_PER_REQUEST: Final = 8
_BLOCK_BYTES_PER_REQUEST: Final = 256


class FrameLoop(RepeatedRequests, abc.ABC):
    """Goes through what arrived, frame by frame. Confined to the serving loop.

    A base of :class:`~tfs.frontends.rpc.express.http2.connection.Connection`.

    Attributes:
        max_requests: Most requests begun, and most completed, in one ``receive``. The
            owner may change it.
        max_large: How many of those completed may be large.

    Args:
        context: The events, budget, limits and buffers that it uses.

    """

    __slots__ = ("max_large", "max_requests")

    def __init__(self, context: ConnectionContext) -> None:
        super().__init__(context)
        self.max_requests = self.max_large = context.limits.max_requests_per_round

    def _take_frames(self, data: bytes, index: int) -> tuple[int, bool]:
        """Takes frames until no whole one is left, or the bound of requests is reached.

        Returns:
            The index behind what was taken, and whether the bound was reached.

        Raises:
            ConnectionFault: The peer broke a rule.

        """
        size = len(data)
        # A request's head and its messages may be far apart, so both are counted.
        num_left = num_whole_left = self.max_requests
        num_others_left = num_left * _OTHERS_PER_REQUEST
        self._num_large = 0
        block = self._block
        # Only one type of frame may come now: SETTINGS at first, CONTINUATION within a
        # header block.
        is_strict = block.stream_id != 0 or not self._saw_settings
        latest = self._opening
        if latest is not None and not is_strict and not self._data_stream_id:
            index, num_taken, num_updates = self._take_repeated(
                latest, data, index, size, num_left, num_others_left
            )
            if index == size or self.is_closed:
                return index, False
            num_left -= num_taken
            num_whole_left -= num_taken
            num_others_left -= num_updates
        table = self._table
        streams = table.live
        heads = self._heads
        openings = self._openings
        events = self._events
        window = self._window
        budget = self._budget
        while True:
            if self._data_stream_id:
                index = self._continue_data(data, index, size)
                if self.is_closed:
                    return index, False
                # Each message of a stream counts as much as a request.
                num_messages, self._num_messages = self._num_messages, 0
                if self._data_stream_id:
                    num_whole_left -= num_messages
                    if index == size:
                        return index, False
                    if num_whole_left <= 0:
                        return index, True
                    continue
                num_whole_left -= max(num_messages, self._data_ends)
                if self._num_large >= self.max_large:
                    num_whole_left = 0
            if size - index < HEAD_SIZE:
                return index, False
            word, flags, stream_id = unpack_head(data, index)
            payload = index + HEAD_SIZE
            length = word >> 8
            frame_type = word & 0xFF
            end = payload + length
            if is_strict:
                pass
            elif frame_type == 0:
                if num_whole_left <= 0:
                    return index, True
                stream = streams.get(stream_id)
                if stream is not None and stream.state is OPENED:
                    if (
                        flags == END_STREAM
                        and end <= size
                        and length >= PREFIX_SIZE
                        and stream.assembler is None
                        and length <= window.size
                    ):
                        flag, body = _unpack_prefix(data, payload)
                        announced = stream.head.content_length
                        if (
                            flag == 0
                            and body == length - PREFIX_SIZE
                            and body <= self._max_request_bytes
                            and (announced is None or announced == length)
                        ):
                            window.size -= length
                            stream.held_bytes += length
                            stream.received_bytes = length
                            stream.state = REQUESTED
                            num_whole_left -= 1
                            events.on_request(stream, data[payload + PREFIX_SIZE : end])
                            index = end
                            if self.is_closed:
                                return index, False
                            continue
                    if (
                        flags | END_STREAM == END_STREAM
                        and 0 < length <= self._limits.max_frame_size
                        and num_others_left > 0
                    ):
                        index, num_taken = self._take_part(
                            stream, data, index, size, num_others_left
                        )
                        num_others_left -= num_taken
                        continue
            elif frame_type == 1:
                if end <= size and flags == END_HEADERS and num_left > 0:
                    fragment = data[payload:end]
                    # Some clients send many heads before the messages that belong to
                    # them.
                    is_followed = end + HEAD_SIZE <= size and data[end + 3] != 1
                    opening = openings.get(fragment) if is_followed else None
                    if opening is not None:
                        behind, num_taken, num_updates = self._take_repeated(
                            opening,
                            data,
                            index,
                            size,
                            min(num_left, num_whole_left),
                            num_others_left,
                        )
                        if num_taken:
                            index = behind
                            num_left -= num_taken
                            num_whole_left -= num_taken
                            num_others_left -= num_updates
                            if self.is_closed:
                                return index, False
                            continue
                    head = heads.get(fragment)
                    if (
                        head is not None
                        and stream_id & 1
                        and table.last_id < stream_id <= table.last_accepted_id
                        and len(streams) + self.num_cut_off
                        < self._limits.max_concurrent_streams
                        and len(streams) < budget.max_streams_each
                        and self.queued_bytes <= self._limits.max_queued_bytes
                    ):
                        num_left -= 1
                        table.last_id = stream_id
                        stream = streams[stream_id] = Stream(
                            stream_id,
                            head,
                            OPENED,
                            self._peer.initial_window,
                            self._now_s,
                        )
                        if opening is None and is_followed:
                            opening = read_opening(
                                data, index, stream_id, fragment, head
                            )
                            if opening is not None:
                                openings[fragment] = opening
                        events.on_open(stream)
                        index = end
                        if self.is_closed:
                            return index, False
                        continue
            elif (
                frame_type == 8 and length == 4 and end <= size and num_others_left > 0
            ):
                num_others_left -= 1
                increment = unpack_uint32(data, payload)[0] & LARGEST_WINDOW
                if stream_id == 0:
                    if 0 < increment <= LARGEST_WINDOW - self._send_window:
                        self._send_window += increment
                        self._num_tiny_updates += increment < TINY_INCREMENT
                        index = end
                        continue
                elif stream_id & 1 and stream_id <= table.last_id:
                    stream = streams.get(stream_id)
                    if stream is None:  # CLOSED or RESET: ignored
                        self._num_tiny_updates += increment < TINY_INCREMENT
                        index = end
                        continue
                    if 0 < increment <= LARGEST_WINDOW - stream.send_window:
                        stream.send_window += increment
                        self._num_tiny_updates += increment < TINY_INCREMENT
                        index = end
                        continue
            # Any other frame is taken the ordinary way.
            if num_others_left <= 0:
                return index, True
            num_others_left -= 1
            stream_id &= LARGEST_WINDOW  # without the reserved bit
            self._check_head(frame_type, flags, stream_id, length)
            if frame_type == FrameType.DATA:
                if flags & PADDED and length and payload >= size:
                    return index, False  # the pad length has not arrived
                index = self._begin_data(data, payload, flags, stream_id, length)
                continue
            if end > size:
                return index, False
            if frame_type in BLOCK_FRAMES:
                if num_left <= 0:
                    return index, True
                num_left -= 1 + length // _BLOCK_BYTES_PER_REQUEST
            self._on_frame(frame_type, flags, stream_id, data[payload:end])
            index = end
            if self.is_closed:
                return index, False
            is_strict = block.stream_id != 0 or not self._saw_settings

    def _charge_tiny_updates(self) -> None:
        """Charges the client for the tiny WINDOW_UPDATEs that the shortcuts took.

        Raises:
            ConnectionFault: They were too many.

        """
        num, self._num_tiny_updates = self._num_tiny_updates, 0
        self._patience.spend(
            Annoyance.TINY_WINDOW_UPDATE, self._now_s, self.num_answered, num
        )
