"""The life of one HTTP/2 stream (RFC 9113, section 5.1) as a single table.

Everything that decides what a frame does to a stream is in :data:`TRANSITIONS`: one
row per state, one entry per signal, none missing. A signal is a frame received, with
END_STREAM told apart, or something we send. The connection asks :func:`step` and
does what the step says; it knows no state rule of its own.

We never push, so both reserved states are absent. CLOSED is told apart from RESET:
after *we* reset a stream, the peer's frames may still be under way, and are dropped
without complaint.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from tfs.frontends.http2.frames import ErrorCode, FrameType


class StreamState(enum.IntEnum):
    """Where a stream stands, seen from the server."""

    IDLE = 0
    """Not opened yet: its id is above every id seen."""
    OPEN = 1
    """Both sides may send."""
    HALF_CLOSED_LOCAL = 2
    """We have ended our side; only until our RST_STREAM(NO_ERROR) follows."""
    HALF_CLOSED_REMOTE = 3
    """The client has sent its request; the answer is due."""
    CLOSED = 4
    """Ended by both sides, or reset by the peer."""
    RESET = 5
    """Reset by us a short while ago."""


class Signal(enum.IntEnum):
    """What can happen to a stream. Received frames keep their type's number."""

    RECEIVE_DATA = FrameType.DATA
    RECEIVE_HEADERS = FrameType.HEADERS
    RECEIVE_PRIORITY = FrameType.PRIORITY
    RECEIVE_RST_STREAM = FrameType.RST_STREAM
    RECEIVE_SETTINGS = FrameType.SETTINGS
    RECEIVE_PUSH_PROMISE = FrameType.PUSH_PROMISE
    RECEIVE_PING = FrameType.PING
    RECEIVE_GOAWAY = FrameType.GOAWAY
    RECEIVE_WINDOW_UPDATE = FrameType.WINDOW_UPDATE
    RECEIVE_CONTINUATION = FrameType.CONTINUATION
    RECEIVE_EXTENSION = 10
    RECEIVE_DATA_END = 11
    RECEIVE_HEADERS_END = 12
    SEND_HEADERS = 13
    SEND_DATA = 14
    SEND_END = 15
    SEND_RST_STREAM = 16


class Reaction(enum.IntEnum):
    """What the connection does about a signal."""

    ACCEPT = 0
    """Process the frame (or send it) and take the new state."""
    IGNORE = 1
    """Drop the frame; it still counts for flow control and HPACK."""
    RESET_STREAM = 2
    """Answer with RST_STREAM and the step's error code."""
    CLOSE_CONNECTION = 3
    """Answer with GOAWAY and the step's error code, and close."""
    FORBID = 4
    """We must not send this now: a fault of ours, not of the peer."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one signal does in one state. Immutable.

    Attributes:
        reaction: What to do.
        next_state: The state afterwards.
        error: The code for RESET_STREAM and CLOSE_CONNECTION.

    """

    reaction: Reaction
    next_state: StreamState
    error: ErrorCode = ErrorCode.NO_ERROR


_S = StreamState
_R = Signal


def _accept(state: StreamState) -> Step:
    return Step(Reaction.ACCEPT, state)


def _ignore(state: StreamState) -> Step:
    return Step(Reaction.IGNORE, state)


def _reset(error: ErrorCode) -> Step:
    return Step(Reaction.RESET_STREAM, StreamState.RESET, error)


def _close(state: StreamState, error: ErrorCode = ErrorCode.PROTOCOL_ERROR) -> Step:
    return Step(Reaction.CLOSE_CONNECTION, state, error)


def _forbid(state: StreamState) -> Step:
    return Step(Reaction.FORBID, state)


def _always(state: StreamState) -> dict[Signal, Step]:
    """Returns what holds in every state.

    SETTINGS, PING and GOAWAY belong to the connection; a client never pushes; a
    CONTINUATION that continues nothing is an error whatever the stream does (one
    that continues a header block never comes here); extensions are ignored; and
    PRIORITY, now deprecated, may come at any time and means nothing to us.
    """
    return {
        _R.RECEIVE_SETTINGS: _close(state),
        _R.RECEIVE_PING: _close(state),
        _R.RECEIVE_GOAWAY: _close(state),
        _R.RECEIVE_PUSH_PROMISE: _close(state),
        _R.RECEIVE_CONTINUATION: _close(state),
        _R.RECEIVE_EXTENSION: _ignore(state),
        _R.RECEIVE_PRIORITY: _ignore(state),
    }


TRANSITIONS: Final[dict[StreamState, dict[Signal, Step]]] = {
    _S.IDLE: {
        **_always(_S.IDLE),
        _R.RECEIVE_HEADERS: _accept(_S.OPEN),
        _R.RECEIVE_HEADERS_END: _accept(_S.HALF_CLOSED_REMOTE),
        _R.RECEIVE_DATA: _close(_S.IDLE),
        _R.RECEIVE_DATA_END: _close(_S.IDLE),
        _R.RECEIVE_RST_STREAM: _close(_S.IDLE),
        _R.RECEIVE_WINDOW_UPDATE: _close(_S.IDLE),
        _R.SEND_HEADERS: _forbid(_S.IDLE),
        _R.SEND_DATA: _forbid(_S.IDLE),
        _R.SEND_END: _forbid(_S.IDLE),
        _R.SEND_RST_STREAM: _forbid(_S.IDLE),
    },
    _S.OPEN: {
        **_always(_S.OPEN),
        # A second header block is the trailers, and trailers end the stream.
        _R.RECEIVE_HEADERS: _reset(ErrorCode.PROTOCOL_ERROR),
        _R.RECEIVE_HEADERS_END: _accept(_S.HALF_CLOSED_REMOTE),
        _R.RECEIVE_DATA: _accept(_S.OPEN),
        _R.RECEIVE_DATA_END: _accept(_S.HALF_CLOSED_REMOTE),
        _R.RECEIVE_RST_STREAM: _accept(_S.CLOSED),
        _R.RECEIVE_WINDOW_UPDATE: _accept(_S.OPEN),
        _R.SEND_HEADERS: _accept(_S.OPEN),
        _R.SEND_DATA: _accept(_S.OPEN),
        _R.SEND_END: _accept(_S.HALF_CLOSED_LOCAL),
        _R.SEND_RST_STREAM: _accept(_S.RESET),
    },
    _S.HALF_CLOSED_LOCAL: {
        **_always(_S.HALF_CLOSED_LOCAL),
        _R.RECEIVE_HEADERS: _reset(ErrorCode.PROTOCOL_ERROR),
        _R.RECEIVE_HEADERS_END: _accept(_S.CLOSED),
        _R.RECEIVE_DATA: _ignore(_S.HALF_CLOSED_LOCAL),
        _R.RECEIVE_DATA_END: _accept(_S.CLOSED),
        _R.RECEIVE_RST_STREAM: _accept(_S.CLOSED),
        _R.RECEIVE_WINDOW_UPDATE: _ignore(_S.HALF_CLOSED_LOCAL),
        _R.SEND_HEADERS: _forbid(_S.HALF_CLOSED_LOCAL),
        _R.SEND_DATA: _forbid(_S.HALF_CLOSED_LOCAL),
        _R.SEND_END: _forbid(_S.HALF_CLOSED_LOCAL),
        _R.SEND_RST_STREAM: _accept(_S.RESET),
    },
    _S.HALF_CLOSED_REMOTE: {
        **_always(_S.HALF_CLOSED_REMOTE),
        _R.RECEIVE_HEADERS: _reset(ErrorCode.STREAM_CLOSED),
        _R.RECEIVE_HEADERS_END: _reset(ErrorCode.STREAM_CLOSED),
        _R.RECEIVE_DATA: _reset(ErrorCode.STREAM_CLOSED),
        _R.RECEIVE_DATA_END: _reset(ErrorCode.STREAM_CLOSED),
        _R.RECEIVE_RST_STREAM: _accept(_S.CLOSED),
        _R.RECEIVE_WINDOW_UPDATE: _accept(_S.HALF_CLOSED_REMOTE),
        _R.SEND_HEADERS: _accept(_S.HALF_CLOSED_REMOTE),
        _R.SEND_DATA: _accept(_S.HALF_CLOSED_REMOTE),
        _R.SEND_END: _accept(_S.CLOSED),
        _R.SEND_RST_STREAM: _accept(_S.RESET),
    },
    _S.CLOSED: {
        **_always(_S.CLOSED),
        _R.RECEIVE_HEADERS: _close(_S.CLOSED, ErrorCode.STREAM_CLOSED),
        _R.RECEIVE_HEADERS_END: _close(_S.CLOSED, ErrorCode.STREAM_CLOSED),
        _R.RECEIVE_DATA: _close(_S.CLOSED, ErrorCode.STREAM_CLOSED),
        _R.RECEIVE_DATA_END: _close(_S.CLOSED, ErrorCode.STREAM_CLOSED),
        # Both may cross our END_STREAM on the wire.
        _R.RECEIVE_RST_STREAM: _ignore(_S.CLOSED),
        _R.RECEIVE_WINDOW_UPDATE: _ignore(_S.CLOSED),
        _R.SEND_HEADERS: _forbid(_S.CLOSED),
        _R.SEND_DATA: _forbid(_S.CLOSED),
        _R.SEND_END: _forbid(_S.CLOSED),
        _R.SEND_RST_STREAM: _forbid(_S.CLOSED),
    },
    _S.RESET: {
        **_always(_S.RESET),
        _R.RECEIVE_HEADERS: _ignore(_S.RESET),
        _R.RECEIVE_HEADERS_END: _ignore(_S.RESET),
        _R.RECEIVE_DATA: _ignore(_S.RESET),
        _R.RECEIVE_DATA_END: _ignore(_S.RESET),
        _R.RECEIVE_RST_STREAM: _ignore(_S.RESET),
        _R.RECEIVE_WINDOW_UPDATE: _ignore(_S.RESET),
        _R.SEND_HEADERS: _forbid(_S.RESET),
        _R.SEND_DATA: _forbid(_S.RESET),
        _R.SEND_END: _forbid(_S.RESET),
        _R.SEND_RST_STREAM: _forbid(_S.RESET),
    },
}


def step(state: StreamState, signal: Signal) -> Step:
    """Returns what ``signal`` does in ``state``. Total, pure."""
    return TRANSITIONS[state][signal]


def received(frame_type: int, ends_stream: bool) -> Signal:
    """Returns the signal of a received frame; ``ends_stream`` is its END_STREAM."""
    if ends_stream:
        if frame_type == FrameType.DATA:
            return Signal.RECEIVE_DATA_END
        if frame_type == FrameType.HEADERS:
            return Signal.RECEIVE_HEADERS_END
    if frame_type > FrameType.CONTINUATION:
        return Signal.RECEIVE_EXTENSION
    return Signal(frame_type)


# What the table says about the ordinary request, looked up once.
OPENED: Final = step(StreamState.IDLE, Signal.RECEIVE_HEADERS).next_state
REQUESTED: Final = step(OPENED, Signal.RECEIVE_DATA_END).next_state
ANSWERED: Final = step(REQUESTED, Signal.SEND_END).next_state
