"""Takes in the frames about the connection and its windows, by the book."""

from __future__ import annotations

from typing import Final

from tfs.frontends.http2 import frames
from tfs.frontends.http2.frames import (
    ACK,
    LARGEST_WINDOW,
    ConnectionFault,
    ErrorCode,
    FrameType,
    unpack_uint32,
)
from tfs.frontends.http2.state import ConnectionState
from tfs.frontends.http2.stream import Reaction, Signal, StreamState

TINY_INCREMENT: Final = 64
"""A WINDOW_UPDATE by fewer bytes counts as tiny: it is worth next to nothing."""

_ABOUT_S: Final = 0.1
"""Seconds by which a client's clock may be ahead of ours. A busy client may send a
request and its RST_STREAM in one go."""

_LONG_S: Final = 1.0
"""A client that resets a stream after waiting this many seconds does not flood us."""


class ControlFrames:
    """Every frame but DATA, header blocks and the answers of PINGs. Confined to the serving loop.

    Attributes:
        num_resets: How many streams the peer has reset.
        saw_settings: Whether the peer's first SETTINGS came.

    Args:
        state: The connection's.

    """

    __slots__ = ("_ping_mark", "_state", "num_resets", "saw_settings")

    def __init__(self, state: ConnectionState) -> None:
        self._state = state
        self._ping_mark = -1
        self.num_resets = 0
        self.saw_settings = False

    def on_frame(
        self, frame_type: int, flags: int, stream_id: int, payload: bytes
    ) -> None:
        """Takes a whole frame whose head was checked."""
        if frame_type == FrameType.WINDOW_UPDATE:
            self._on_window_update(stream_id, payload)
        elif frame_type == FrameType.SETTINGS:
            self._on_settings(flags, payload)
        elif frame_type == FrameType.PING:
            self._on_ping(payload)
        elif frame_type == FrameType.RST_STREAM:
            self._on_rst_stream(stream_id)
        elif frame_type == FrameType.PUSH_PROMISE:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "clients push nothing")
        else:
            # Extensions; PRIORITY, which is deprecated; and a GOAWAY, after which the
            # client closes the connection when its calls are done.
            self._state.count_nuisance("ignored frames", 2)

    def _on_rst_stream(self, stream_id: int) -> None:
        self.num_resets += 1
        state = self._state
        verdict = state.step(stream_id, Signal.RST_STREAM)
        if verdict.reaction is Reaction.ACCEPT:
            stream = state.streams[stream_id]
            state.sender.drop(stream, StreamState.CLOSED)
            state.events.on_reset(stream)
            allowed_s = stream.head.timeout_s
            if allowed_s is None or allowed_s > _LONG_S:
                allowed_s = _LONG_S
            if stream.opened_s + allowed_s <= state.now_s + _ABOUT_S:
                return  # it is past its deadline or was open for long: no flood
        state.count_nuisance("RST_STREAM", 2)

    def _on_window_update(self, stream_id: int, payload: bytes) -> None:
        state, sender = self._state, self._state.sender
        increment = unpack_uint32(payload)[0] & LARGEST_WINDOW
        if stream_id == 0:
            if increment == 0:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            sender.window += increment
            if sender.window > LARGEST_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "window overflow")
        else:
            verdict = state.step(stream_id, Signal.WINDOW_UPDATE)
            if verdict.reaction is Reaction.ACCEPT:
                stream = state.streams[stream_id]
                stream.send_window += increment
                if increment == 0:
                    state.reset_by_fault(stream_id, ErrorCode.PROTOCOL_ERROR)
                elif stream.send_window > LARGEST_WINDOW:
                    state.reset_by_fault(stream_id, ErrorCode.FLOW_CONTROL_ERROR)
        if increment < TINY_INCREMENT:
            state.count_nuisance("tiny WINDOW_UPDATE")

    def _on_settings(self, flags: int, payload: bytes) -> None:
        state = self._state
        if flags & ACK:
            state.count_nuisance("ignored frames", 2)
            return
        if self.saw_settings:
            state.count_nuisance("SETTINGS", 20)
        self.saw_settings = True
        state.sender.take_settings(payload)

    def _on_ping(self, payload: bytes) -> None:
        # Clients measure their bandwidth by a PING after data that we sent; those do
        # not count.
        sender = self._state.sender
        mark = sender.num_answered + sender.sent_bytes
        if mark == self._ping_mark:
            self._state.count_nuisance("PING", 5)
        self._ping_mark = mark
        sender.out.append(frames.ping(payload, ack=True))
