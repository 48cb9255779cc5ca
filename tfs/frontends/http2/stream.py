"""The streams of a connection: one for each call, and what is known of those that are gone."""

from __future__ import annotations

import enum
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

from tfs.frontends.budget import Ticket
from tfs.frontends.http2.frames import LARGEST_WINDOW, ErrorCode
from tfs.frontends.http2.outbox import Outbox
from tfs.frontends.http2.request_head import RequestHead
from tfs.frontends.http2.upload import Upload

STREAM_BYTES: Final = 1024
"""What a stream counts in the budget while it is open."""

_MAX_RECENT_RESETS: Final = 1024


@dataclass(slots=True, eq=False)
class Stream:
    """One call's stream. Confined to the serving loop; made by the connection.

    Attributes:
        id: The stream id.
        head: The request's headers.
        state: Its row in the transition table.
        owner: Whatever the events object keeps here, such as the call.
        opened_s: When its headers arrived.
        received_bytes: Bytes of DATA payload so far, with prefixes and without padding.
        held_bytes: What it counts in the budget, beside what was admitted.
        send_window: Bytes that we may send on it; negative if SETTINGS have shrunk it.
        has_sent_headers: Whether the response headers are out.
        ticket: What was admitted of it, or waits to be: a long request that arrives, or
            a request with a long answer.
        upload: What is known of its request if that comes in parts.
        outbox: The part of the answer that flow control holds back.
        end_block: The trailers behind that.

    """

    id: int
    head: RequestHead
    state: StreamState
    send_window: int
    opened_s: float
    owner: Any = None  # set by the events object, which alone knows its type
    received_bytes: int = 0
    held_bytes: int = STREAM_BYTES
    has_sent_headers: bool = False
    ticket: Ticket | None = None
    upload: Upload | None = None
    outbox: Outbox | None = None
    end_block: bytes | None = None

    @property
    def is_inside_message(self) -> bool:
        """Whether a message has begun to arrive and is not whole."""
        return self.upload is not None and not self.upload.is_between_messages

    def __repr__(self) -> str:
        return f"<Stream {self.id} {self.state.name} {self.head.path}>"


class StreamTable:
    """The streams of one connection. Loop-confined.

    Only live ones are kept. Of the others it is enough to know how far the client has
    come, and which streams we reset a short while ago.

    Attributes:
        live: Open streams by id, in the order in which they were opened.
        last_id: The highest id that the client has opened. Ids that it left out are
            closed.
        last_accepted_id: The highest id that is served, which our GOAWAY has told;
            before it, the highest that there can be.

    """

    __slots__ = ("_resets", "last_accepted_id", "last_id", "live")

    def __init__(self) -> None:
        self.live: dict[int, Stream] = {}
        self.last_id = 0
        self.last_accepted_id = LARGEST_WINDOW
        self._resets: OrderedDict[int, None] = OrderedDict()

    def state_of(self, stream_id: int) -> StreamState:
        """Returns the state of any stream, known or not."""
        stream = self.live.get(stream_id)
        if stream is not None:
            return stream.state
        # Even ids are for servers to open, and this one never does.
        if stream_id > self.last_id or not stream_id & 1:
            return StreamState.IDLE
        return StreamState.RESET if stream_id in self._resets else StreamState.CLOSED

    def remember_reset(self, stream_id: int) -> None:
        """Notes that we reset a stream, so that frames under way to it are ignored."""
        self._resets[stream_id] = None
        if len(self._resets) > _MAX_RECENT_RESETS:
            self._resets.popitem(last=False)


class StreamState(enum.IntEnum):
    """Where a stream stands, seen from the server."""

    IDLE = 0
    """Not opened yet: its id is above every id seen."""
    OPEN = 1
    """Both sides may send."""
    REQUESTED = 2
    """The client has sent its request; the answer is due (half closed, remote)."""
    CLOSED = 3
    """Ended by both sides, or reset by the peer."""
    RESET = 4
    """Reset by us a short while ago."""


class Signal(enum.IntEnum):
    """The frames that a stream's state decides about. Of others no state depends."""

    DATA = 0
    DATA_END = 1
    """With END_STREAM, as the next but one."""
    HEADERS = 2
    HEADERS_END = 3
    RST_STREAM = 4
    WINDOW_UPDATE = 5


class Reaction(enum.IntEnum):
    """What the connection does about a signal."""

    ACCEPT = 0
    """Process the frame and take the new state."""
    IGNORE = 1
    """Drop the frame; it still counts for flow control and HPACK."""
    RESET_STREAM = 2
    """Answer with RST_STREAM and the step's error code."""
    CLOSE_CONNECTION = 3
    """Answer with GOAWAY and the step's error code, and close."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one signal does in one state. Immutable.

    Attributes:
        reaction: What to do.
        next_state: The state afterwards; None if it stays.
        error: The code for RESET_STREAM and CLOSE_CONNECTION.

    """

    reaction: Reaction
    next_state: StreamState | None = None
    error: ErrorCode = ErrorCode.NO_ERROR


def _accept(state: StreamState) -> Step:
    return Step(Reaction.ACCEPT, state)


def _reset(error: ErrorCode) -> Step:
    return Step(Reaction.RESET_STREAM, StreamState.RESET, error)


_IGNORE: Final = Step(Reaction.IGNORE)
_CLOSE: Final = Step(Reaction.CLOSE_CONNECTION, error=ErrorCode.PROTOCOL_ERROR)
_LATE: Final = Step(Reaction.CLOSE_CONNECTION, error=ErrorCode.STREAM_CLOSED)

TRANSITIONS: Final[dict[StreamState, dict[Signal, Step]]] = {
    StreamState.IDLE: {
        **dict.fromkeys(Signal, _CLOSE),
        Signal.HEADERS: _accept(StreamState.OPEN),
        Signal.HEADERS_END: _accept(StreamState.REQUESTED),
    },
    StreamState.OPEN: {
        Signal.DATA: _accept(StreamState.OPEN),
        Signal.DATA_END: _accept(StreamState.REQUESTED),
        # A second header block is the trailers, and trailers end the stream.
        Signal.HEADERS: _reset(ErrorCode.PROTOCOL_ERROR),
        Signal.HEADERS_END: _accept(StreamState.REQUESTED),
        Signal.RST_STREAM: _accept(StreamState.CLOSED),
        Signal.WINDOW_UPDATE: _accept(StreamState.OPEN),
    },
    StreamState.REQUESTED: {
        **dict.fromkeys(Signal, _reset(ErrorCode.STREAM_CLOSED)),
        Signal.RST_STREAM: _accept(StreamState.CLOSED),
        Signal.WINDOW_UPDATE: _accept(StreamState.REQUESTED),
    },
    StreamState.CLOSED: {
        **dict.fromkeys(Signal, _LATE),
        # Both may cross our END_STREAM on the wire.
        Signal.RST_STREAM: _IGNORE,
        Signal.WINDOW_UPDATE: _IGNORE,
    },
    StreamState.RESET: dict.fromkeys(Signal, _IGNORE),
}


def step(state: StreamState, signal: Signal) -> Step:
    """Returns what ``signal`` does in ``state``. Total, pure."""
    return TRANSITIONS[state][signal]
