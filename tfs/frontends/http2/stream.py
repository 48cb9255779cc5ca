"""The streams of a connection: one for each call, and what is known of those that are gone."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

from tfs.frontends.budget import Ticket
from tfs.frontends.http2.frames import LARGEST_WINDOW
from tfs.frontends.http2.outbox import Outbox
from tfs.frontends.http2.request_head import RequestHead
from tfs.frontends.http2.states import StreamState
from tfs.frontends.http2.upload import Upload

STREAM_BYTES: Final = 1024
"""What a stream counts in the budget while it is open."""

_MAX_RECENT_RESETS: Final = 1024


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

    __slots__ = (
        "end_block",
        "has_sent_headers",
        "head",
        "held_bytes",
        "id",
        "opened_s",
        "outbox",
        "owner",
        "received_bytes",
        "send_window",
        "state",
        "ticket",
        "upload",
    )

    def __init__(
        self,
        stream_id: int,
        head: RequestHead,
        state: StreamState,
        send_window: int,
        now_s: float,
    ) -> None:
        self.id = stream_id
        self.head = head
        self.state = state
        self.send_window = send_window
        self.opened_s = now_s
        self.owner: Any = None  # set by the events object, which alone knows its type
        self.received_bytes = 0
        self.held_bytes = STREAM_BYTES
        self.has_sent_headers = False
        self.ticket: Ticket | None = None
        self.upload: Upload | None = None
        self.outbox: Outbox | None = None
        self.end_block: bytes | None = None

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
