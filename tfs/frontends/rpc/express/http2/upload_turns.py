"""Decides which of a connection's uploads goes on while room is short.

Clients send several requests in turn, a part of each at a time. If there is room for
only one of them, none would ever be complete. So SETTINGS narrow the windows of all
streams, and a WINDOW_UPDATE lets the upload that lacks the fewest bytes go on; then
comes the next.

What the others may still send stays in memory until their turns. So it is next to
nothing, and they are told before they have sent anything: with 64 KB each, the uploads of
a few clients filled all that could be lent, and none was ever complete.

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

NARROW_WINDOW: Final = 4096
"""What each stream may send while another has its turn. A small request needs no turn."""

_NARROW: Final = frames.settings({Setting.INITIAL_WINDOW_SIZE: NARROW_WINDOW})
_WIDE: Final = frames.settings({Setting.INITIAL_WINDOW_SIZE: LARGEST_WINDOW})


class UploadTurns:
    """The turns of one connection's uploads. Loop-confined.

    Attributes:
        is_narrow: Whether its streams were told to wait for their turns.
        stream: The stream whose turn it is.

    Args:
        streams: The live streams of the connection, by id.

    """

    __slots__ = (
        "_begun_bytes",
        "_helped_in_vain",
        "_let_on",
        "_streams",
        "_under_way_bytes",
        "is_narrow",
        "stream",
    )

    def __init__(self, streams: Mapping[int, Stream]) -> None:
        self.is_narrow = False
        self._streams = streams
        self.stream: Stream | None = None
        # Bytes of each stream when the turn began.
        self._begun_bytes: dict[int, int] = {}
        # What others could send then although they were told to wait.
        self._under_way_bytes = 0
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

    def next_turn(self, window_bytes: int = 0) -> tuple[int, bytes]:
        """Chooses the upload that lacks the fewest bytes.

        Args:
            window_bytes: What the client may still send of what it was granted before,
                on any stream: it may be under way.

        Returns:
            The bytes that the connection may need for it, including those that its
            other streams may send before they stop; and the frames that tell the
            client.

        """
        opened = [each for each in self._streams.values() if each.state is OPENED]
        uploads = [(each.missing_bytes, each) for each in opened if each.missing_bytes]
        if self.has_turn:
            assert self.stream is not None
            self._helped_in_vain = not self._has_gone_on(self.stream)
        self._begun_bytes = {each.id: each.received_bytes for each in opened}
        self._under_way_bytes = window_bytes
        out = b""
        used_bytes = 0  # by others, before they know that they are to wait
        if len(opened) > 1 and not self.is_narrow:
            self.is_narrow = True
            out = _NARROW
            used_bytes = window_bytes
        if not uploads:
            self.stream = None  # no upload has sent its first bytes yet
            return used_bytes + max(self._others_bytes(), DEFAULT_WINDOW), out
        missing_bytes, stream = min(uploads, key=lambda upload: upload[0])
        self.stream = stream
        if not self.is_narrow:
            return missing_bytes, out
        if stream.id not in self._let_on:
            self._let_on.append(stream.id)
            # It gets no more than it lacks. Otherwise its window would exceed HTTP/2's
            # limit once all windows are widened again.
            wanted = stream.received_bytes + missing_bytes - NARROW_WINDOW
            if wanted > 0:
                out += window_update(stream.id, wanted)
        return missing_bytes + self._others_bytes() + used_bytes, out

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
        return sum(others) <= self._under_way_bytes + NARROW_WINDOW * len(others)

    def _others_bytes(self) -> int:
        """Returns what the streams that have no turn may send before they stop."""
        return sum(
            max(0, NARROW_WINDOW - each.received_bytes)
            for each in self._streams.values()
            if each.state is OPENED and each is not self.stream
        )

    def _is_going_on(self, stream_id: int) -> bool:
        stream = self._streams.get(stream_id)
        return stream is not None and stream.state is OPENED
