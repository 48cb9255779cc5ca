"""The states of a stream (RFC 9113, section 5.1) as a single table.

Everything that decides what a received frame does to a stream is in :data:`TRANSITIONS`:
one row per state, one entry per signal, none missing. The connection asks :func:`step` and
does what the step says; it knows no state rule of its own.

We never push, so both reserved states are absent. So is a stream of which only our side has
ended: RST_STREAM(NO_ERROR) follows our answer at once, because the rest of the request is
of no use. CLOSED is told apart from RESET: after *we* reset a stream, the peer's frames may
still be under way, and are dropped without complaint.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from tfs.frontends.http2.frames import ErrorCode


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
