"""Decides which of a connection's uploads goes on while room is short.

Clients send several requests in turn, a part of each at a time. If there is room for
only one of them, none would ever be complete. So SETTINGS narrow the windows of all
streams, and a WINDOW_UPDATE lets the upload that lacks the fewest bytes go on; then
comes the next.

A client that ignores this gains nothing, because the connection's window limits it in
any case. Other requests of the client use up a part of what that window was widened by
for an upload, so it is widened again for one that goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tfs.frontends.rpc import frames
from tfs.frontends.rpc.express.http2.flow_control import LEAST_GRANT
from tfs.frontends.rpc.express.http2.stream import Stream
from tfs.frontends.rpc.express.http2.stream_state import OPENED
from tfs.frontends.rpc.frames import (
    DEFAULT_WINDOW,
    LARGEST_WINDOW,
    Setting,
    window_update,
)

_NARROW: Final = frames.settings({Setting.INITIAL_WINDOW_SIZE: DEFAULT_WINDOW})
_WIDE: Final = frames.settings({Setting.INITIAL_WINDOW_SIZE: LARGEST_WINDOW})


class UploadTurns:
    """The turns of one connection's uploads. Loop-confined.

    Attributes:
        is_narrow: Whether its streams have HTTP/2's initial windows.
        stream: The stream whose turn it is.

    Args:
        streams: The live streams of the connection, by id.

    """

    __slots__ = (
        "_begun_bytes",
        "_helped_in_vain",
        "_let_on",
        "_streams",
        "is_narrow",
        "stream",
    )

    def __init__(self, streams: Mapping[int, Stream]) -> None:
        self.is_narrow = False
        self._streams = streams
        self.stream: Stream | None = None
        # Bytes of each stream when the turn began.
        self._begun_bytes: dict[int, int] = {}
        self._let_on: list[int] = []  # streams whose windows are wider than the others'
        self._helped_in_vain = False

    @property
    def has_turn(self) -> bool:
        """Whether an upload that was chosen is going on."""
        stream = self.stream
        return stream is not None and self._is_going_on(stream.id)

    def is_short(self, window_bytes: int) -> bool:
        """Tells whether the upload in turn lacks more than the client may still send.

        That is so if requests that are whole, or that began meanwhile, used what was
        meant for the upload. If nothing came of the upload itself, it is so once, and
        only if the others were not told to wait; and it is not so if others went on that
        were told. Otherwise a client could hold any number of bytes of requests that
        never become whole.
        """
        stream = self.stream
        if stream is None or stream.missing_bytes <= window_bytes:
            return False
        if not (self.is_narrow or self._helped_in_vain or window_bytes >= LEAST_GRANT):
            return True
        return self._has_gone_on(stream)

    def pass_on(self) -> None:
        """Ends the turn, so that the next one may begin."""
        self.stream = None

    def next_turn(self) -> tuple[int, bytes]:
        """Chooses the upload that lacks the fewest bytes.

        Returns:
            The bytes that the connection may need for it, including those that its
            other streams may send before they stop; and the frames that tell the
            client.

        """
        uploads = [
            (stream.missing_bytes, stream)
            for stream in self._streams.values()
            if stream.state is OPENED and stream.missing_bytes
        ]
        num_others = len(self._streams)
        if self.has_turn:
            assert self.stream is not None
            self._helped_in_vain = not self._has_gone_on(self.stream)
        if not uploads:
            self.stream = None  # no upload has sent its first bytes yet
            return DEFAULT_WINDOW * max(1, num_others), b""
        missing_bytes, stream = min(uploads, key=lambda upload: upload[0])
        self.stream = stream
        self._begun_bytes = {
            each.id: each.received_bytes
            for each in self._streams.values()
            if each.state is OPENED
        }
        if len(uploads) == 1 and not self.is_narrow:
            return missing_bytes, b""
        out = b"" if self.is_narrow else _NARROW
        self.is_narrow = True
        if stream.id not in self._let_on:
            self._let_on.append(stream.id)
            # It gets no more than it lacks. Otherwise its window would exceed HTTP/2's
            # limit once all windows are widened again.
            wanted = stream.received_bytes + missing_bytes - DEFAULT_WINDOW
            if wanted > 0:
                out += window_update(stream.id, wanted)
        return missing_bytes + DEFAULT_WINDOW * num_others, out

    def end(self) -> bytes:
        """Returns the frames that let every stream go on again; empty if that has to wait.

        The window of a stream that had a turn cannot be widened before the stream has
        used it up, or it would be too wide for HTTP/2.
        """
        self.stream = None
        if not self.is_narrow or any(map(self._is_going_on, self._let_on)):
            return b""
        self.is_narrow = False
        self._let_on.clear()
        self._helped_in_vain = False
        return _WIDE

    def _has_gone_on(self, stream: Stream) -> bool:
        """Whether the upload in turn has used what was meant for it, and others waited."""
        begun = self._begun_bytes
        if stream.received_bytes - begun.get(stream.id, 0) < LEAST_GRANT:
            return False
        if not self.is_narrow:
            return True
        others = [
            each.received_bytes - begun.get(each.id, 0)
            for each in self._streams.values()
            if each.state is OPENED and each is not stream
        ]
        return sum(others) <= DEFAULT_WINDOW * len(others)

    def _is_going_on(self, stream_id: int) -> bool:
        stream = self._streams.get(stream_id)
        return stream is not None and stream.state is OPENED
