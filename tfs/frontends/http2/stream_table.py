"""Which streams a connection has, and in which state any other stream id is.

Only live streams are kept. Of the others it is enough to know how far the client has
come, and which streams we reset a short while ago.
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
