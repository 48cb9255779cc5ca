"""One call's stream as its connection sees it."""

from __future__ import annotations

from typing import Any

from tfs.frontends.rpc.express.http2.messages import MessageAssembler
from tfs.frontends.rpc.express.http2.outbox import Outbox
from tfs.frontends.rpc.express.http2.stream_state import StreamState
from tfs.frontends.rpc.heads.request_head import RequestHead


class Stream:
    """One call's stream. Confined to the serving loop; made by the connection.

    Attributes:
        id: The stream id.
        head: The request's headers.
        state: Its row in the transition table.
        owner: Whatever the events object keeps here, such as the call.
        opened_s: When its headers arrived.
        received_bytes: Bytes of DATA payload so far, with prefixes and without padding.
        held_bytes: How many of these, and of a long head's, still count against the
            receive budget.
        send_window: Bytes that we may send on it; negative if SETTINGS have shrunk it.
        has_sent_headers: Whether the response headers are out.
        progress_s: When its outbox began to fill, plus the time that the bytes sent
            since would take at the least pace.
        message_s: When the current message began to arrive, if it comes in several
            parts.

    """

    __slots__ = (
        "assembler",
        "end_block",
        "has_sent_headers",
        "head",
        "held_bytes",
        "id",
        "message_s",
        "opened_s",
        "outbox",
        "owner",
        "progress_s",
        "received_bytes",
        "send_window",
        "state",
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
        self.held_bytes = 0
        self.has_sent_headers = False
        self.assembler: MessageAssembler | None = None
        # The part of the answer that flow control holds back, and the trailers behind
        # it.
        self.outbox: Outbox | None = None
        self.end_block: bytes | None = None
        self.progress_s = 0.0
        self.message_s = now_s

    @property
    def outbox_bytes(self) -> int:
        """Bytes of the answer that wait to be sent."""
        return 0 if self.outbox is None else self.outbox.size_bytes

    @property
    def is_inside_message(self) -> bool:
        """Whether a message has begun to arrive and is not whole."""
        return self.assembler is not None and not self.assembler.is_between_messages

    @property
    def missing_bytes(self) -> int:
        """Bytes that the message lacks that has begun to arrive; 0 if none has."""
        return 0 if self.assembler is None else self.assembler.missing_bytes

    def __repr__(self) -> str:
        return f"<Stream {self.id} {self.state.name} {self.head.path}>"
