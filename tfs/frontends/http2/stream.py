"""One call's stream as its connection sees it."""

from __future__ import annotations

from typing import Any, Final

from tfs.frontends.budget import Ticket
from tfs.frontends.http2.outbox import Outbox
from tfs.frontends.http2.request_head import RequestHead
from tfs.frontends.http2.states import StreamState
from tfs.frontends.http2.upload import Upload

STREAM_BYTES: Final = 1024
"""What a stream counts in the budget while it is open."""


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
