"""One client's HTTP/2 connection, without a socket (RFC 9113, gRPC over HTTP/2).

Bytes go in through :meth:`Connection.receive`. What they mean comes out as calls of a
:class:`ConnectionEvents`, in order and on the same stack. What is to be sent collects
in :attr:`Connection.out`. The caller owns the socket, the clock and the calls; this
class owns stream states, flow control in both directions, HPACK and limits.

It is built in layers. Each is a base class of the next and knows only those before it,
and all make up one object, because they work on the same streams and windows:

    SendingHalf       answers and their flow control, the end of streams
    StreamIntake      DATA, its flow control, messages
    FrameIntake       every other frame, by the book
    RepeatedRequests  whole requests that begin as the one before did
    FrameLoop which frame is next, and shortcuts for the most frequent frames
    Connection        how it begins and ends

What the layers work on is in modules of its own: the streams (``stream_table``) and
their states (``stream_state``), an unfinished header block (``header_block``) and its
contents (``head_cache``), the windows of both directions (``flow_control``,
``outbox``), what a client may ask for (``connection_limits``), and how much
misbehaviour is tolerated (``patience``).

A peer that breaks the rules loses its connection and harms nobody else: ``receive``
does not raise for anything that the peer sends, but queues GOAWAY and sets
``is_closed``. Exceptions raised by the events object do pass through.
"""

from __future__ import annotations

from typing import Final, NoReturn

from tfs.core.errors import forget_frames
from tfs.frontends.rpc import frames
from tfs.frontends.rpc.express.http2 import response
from tfs.frontends.rpc.express.http2.connection_context import ConnectionContext
from tfs.frontends.rpc.express.http2.connection_events import NOBODY
from tfs.frontends.rpc.express.http2.frame_loop import TINY_UPDATES_AT_ONCE, FrameLoop
from tfs.frontends.rpc.express.http2.patience import Annoyance
from tfs.frontends.rpc.express.http2.stream_state import StreamState
from tfs.frontends.rpc.frames import (
    LARGEST_WINDOW,
    PREFACE,
    ConnectionFault,
    ErrorCode,
    Setting,
)

_DRAIN_PING: Final = b"tfsdrain"
_KEEPALIVE_PING: Final = b"tfsalive"


class Connection(FrameLoop):
    """The state of one connection. Confined to the serving loop.

    Attributes:
        is_closed: Whether the connection has ended, by a GOAWAY with an error or
            because its drain is over. The owner then sends what is in ``out`` and
            closes the socket.
        is_draining: Whether the client was told that no new streams are wanted.
        fault: Why the peer was cut off, if it was.
        num_begun: How many requests the last ``receive`` began.

    Args:
        context: The events, budget, limits and buffers that it uses.

    """

    __slots__ = (
        "_has_greeted",
        "_rest",
        "_rest_since_s",
        "_saw_preface",
        "_told_streams",
        "fault",
        "is_draining",
        "num_begun",
    )

    def __init__(self, context: ConnectionContext) -> None:
        super().__init__(context)
        self.fault: ConnectionFault | None = None
        self.num_begun = 0
        self._rest = b""  # bytes received but not parsed yet
        self._rest_since_s = context.begun_s
        self._saw_preface = False
        # Our preface waits for the client's, because a client that speaks HTTP/1 gets
        # an answer in HTTP/1 instead.
        self._has_greeted = False
        self._told_streams = 0
        self.is_draining = False

    # -- what the owner asks ----------------------------------------------------------

    @property
    def is_established(self) -> bool:
        """Whether the client's preface and SETTINGS arrived."""
        return self._saw_settings

    @property
    def stuck_since_s(self) -> float | None:
        """When the unfinished header block or frame (not DATA) began; None without."""
        if self._block.stream_id:
            return self._block.since_s
        return self._rest_since_s if self._rest else None

    @property
    def num_decoded_heads(self) -> int:
        """How many request heads were not in the cache of header blocks."""
        return self._cache.num_decoded

    @property
    def is_idle(self) -> bool:
        """Whether no call is open, and none that was cut off is still worked on."""
        return not self.streams and not self.num_cut_off

    # -- receiving ----------------------------------------------------------------------

    def receive(self, data: bytes, now_s: float) -> bool:
        """Takes bytes from the peer; empty bytes continue after it has returned True.

        Returns:
            Whether whole frames are left because the limit of requests per round was
            reached. If so, call it again in the next round, with no new bytes.

        """
        if self.is_closed:
            return False
        self._now_s = now_s
        self.num_begun = 0
        begun_after = self._table.last_id
        if self._rest:
            data = self._rest + data
        index = 0
        has_more = False
        try:
            if not self._saw_preface:
                index = self._take_preface(data)
            if self._saw_preface:
                index, has_more = self._take_frames(data, index)
            self.num_begun = (self._table.last_id - begun_after + 1) // 2
            if self._num_tiny_updates >= TINY_UPDATES_AT_ONCE:
                self._charge_tiny_updates()
        except ConnectionFault as fault:
            self.terminate(fault)
            return False
        if self.is_closed:
            return False
        if index or not self._rest:
            self._rest_since_s = now_s
        self._rest = data[index:]
        if self._window.size < self._window.low_water:
            self.refill()
        return has_more

    def refill(self) -> None:
        """Raises the client's window again, as far as the budget allows."""
        if not self._has_greeted or self.is_closed:
            return
        window = self._window
        update = b""
        if not self.is_choked:
            if self._is_favoured or self._upload_turns.is_narrow:
                self._take_turns()
            update = window.refill()
        if (self.is_choked or window.is_starved) and not self.num_cut_off:
            update = update or self._refill_own()
        if update:
            self.out.append(update)

    def _refill_own(self) -> bytes:
        """Grants what no client has to wait for, since a few small requests need it."""
        window = self._window
        if not window.has_own_to_refill:
            return b""
        return window.refill_own(sum(each.held_bytes for each in self.streams.values()))

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
            self.out.append(response.HTTP_1_ANSWER)
            self.is_closed = True
            raise ConnectionFault(ErrorCode.HTTP_1_1_REQUIRED, "client speaks HTTP/1")
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "no HTTP/2 preface")

    def _greet(self) -> None:
        """Queues our preface, which is SETTINGS (RFC 9113 section 3.4), once."""
        if self._has_greeted:
            return
        self._has_greeted = True
        limits = self._limits
        self._told_streams = self._streams_to_tell
        self.out.append(
            frames.settings(
                {
                    Setting.MAX_CONCURRENT_STREAMS: self._told_streams,
                    Setting.INITIAL_WINDOW_SIZE: LARGEST_WINDOW,
                    Setting.MAX_FRAME_SIZE: limits.max_frame_size,
                    Setting.MAX_HEADER_LIST_SIZE: limits.max_header_list_bytes,
                }
            )
        )

    @property
    def _streams_to_tell(self) -> int:
        return min(self._limits.max_concurrent_streams, self._budget.told_streams_each)

    def tell_streams(self) -> bool:
        """Tells the client how many streams it may have; returns False if it knows already.

        Streams that it opens meanwhile are refused, and its library may not retry
        those.
        """
        told = self._streams_to_tell
        if not self._has_greeted or self.is_closed or told == self._told_streams:
            return False
        self._told_streams = told
        self.out.append(frames.settings({Setting.MAX_CONCURRENT_STREAMS: told}))
        return True

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
        self.out.append(frames.goaway(LARGEST_WINDOW, ErrorCode.NO_ERROR, "draining"))
        self.out.append(frames.ping(_DRAIN_PING))

    def finish_drain(self) -> None:
        """Accepts no stream beyond those seen; idempotent."""
        table = self._table
        if self.is_closed or table.last_accepted_id != LARGEST_WINDOW:
            return
        self.is_draining = True
        table.last_accepted_id = table.last_id
        self.out.append(frames.goaway(table.last_id, ErrorCode.NO_ERROR, "draining"))

    @property
    def is_drained(self) -> bool:
        """Whether ``finish_drain`` has drawn the line and every stream has ended."""
        return self._table.last_accepted_id != LARGEST_WINDOW and not self.streams

    def ping(self) -> None:
        """Asks the client for a sign of life."""
        self.out.append(frames.ping(_KEEPALIVE_PING))

    def _on_pong(self, payload: bytes) -> None:
        if payload == _DRAIN_PING and self.is_draining:
            self.finish_drain()
        else:
            self._annoyed(Annoyance.IGNORED_FRAME)

    def terminate(self, fault: ConnectionFault) -> None:
        """Ends the connection because of ``fault``: sends GOAWAY and drops every stream."""
        if not self.is_closed:
            self._greet()
            self.out.append(
                frames.goaway(self._table.last_id, fault.code, fault.reason)
            )
        if self.fault is None:
            # They refer to the owner, and this object keeps the fault.
            forget_frames(fault)
            self.fault = fault
        self.close()

    def close(self) -> None:
        """Forgets every stream (each brings ``on_reset``) and the window; idempotent.

        Afterwards it makes no more calls to its owner, and refers to it no longer.
        Otherwise the two would keep each other alive, with all that they hold, until
        the garbage collector runs.
        """
        self.is_closed = True
        self._rest = b""
        while self.streams:
            stream = next(iter(self.streams.values()))
            self._drop(stream, StreamState.CLOSED)
            self._events.on_reset(stream)
        self._events = NOBODY
        self._forget_large_block()
        self._window.close()
