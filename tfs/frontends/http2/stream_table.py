"""Which streams a connection has, and in which state any other stream id is.

Only live streams are kept. Of the others it is enough to know how far the client has
come, which ids it left out, and which streams we reset a short while ago.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from tfs.frontends.http2.frames import LARGEST_WINDOW
from tfs.frontends.http2.states import StreamState
from tfs.frontends.http2.stream import Stream

_MAX_RECENT_RESETS: Final = 1024


class StreamTable:
    """The streams of one connection. Loop-confined.

    Attributes:
        live: Open streams by id, in the order in which they were opened.
        last_id: The highest id that the client has opened.
        last_accepted_id: The highest id that is served, which our GOAWAY has told;
            before it, the highest that there can be.

    """

    __slots__ = ("_resets", "_skipped_ids", "last_accepted_id", "last_id", "live")

    def __init__(self) -> None:
        self.live: dict[int, Stream] = {}
        self.last_id = 0
        self.last_accepted_id = LARGEST_WINDOW
        self._resets: OrderedDict[int, None] = OrderedDict()
        # The ids that the client skipped last, which closed them. Clients that skip ids
        # do so at the beginning of a connection.
        self._skipped_ids = range(0)

    def state_of(self, stream_id: int) -> StreamState:
        """Returns the state of any stream, known or not."""
        stream = self.live.get(stream_id)
        if stream is not None:
            return stream.state
        if stream_id > self.last_id and stream_id & 1:
            return StreamState.IDLE
        if stream_id in self._resets:
            return StreamState.RESET
        if not stream_id & 1:
            # Only servers may open these, and this one never does.
            return StreamState.IDLE
        return StreamState.CLOSED

    def advance_to(self, stream_id: int) -> None:
        """Notes that the client has opened a stream and skipped any ids before it."""
        if stream_id - self.last_id > 2:
            self._skipped_ids = range(self.last_id + 1, stream_id)
        self.last_id = stream_id

    def was_skipped(self, stream_id: int) -> bool:
        """Tells whether the client lately left out that id; False if in doubt."""
        return stream_id in self._skipped_ids

    def remember_reset(self, stream_id: int) -> None:
        """Notes that we reset a stream, so that frames under way to it are ignored."""
        self._resets[stream_id] = None
        if len(self._resets) > _MAX_RECENT_RESETS:
            self._resets.popitem(last=False)
