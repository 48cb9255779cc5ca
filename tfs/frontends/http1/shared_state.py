"""What the connections of one HTTP/1.1 transport have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import get_ident
from typing import Any, ClassVar, Final

from tfs.core.executor import Executor
from tfs.core.http_call import HttpHandler, TakeAlike
from tfs.core.loop.serving_loop import ServingLoop
from tfs.frontends.budget import MemoryBudget
from tfs.frontends.clients import ClientOptions, Clients
from tfs.frontends.http1.call import HttpRequestCall
from tfs.frontends.http1.request_parser import RequestHead

_MAX_HEADS: Final = 256
_MAX_HEAD_BYTES: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions(ClientOptions):
    """How much clients may send, and how long they may take. Immutable, checked.

    Attributes:
        max_head_bytes: Longest request line and headers together.
        max_body_bytes: Longest body, as sent and when inflated.
        request_timeout_s: Deadline of a request, from its headers on; 0 for none.
        idle_timeout_s: How long a connection without requests is kept.
        max_connection_age_s: After about so long a connection is closed behind the
            answer that comes next; 0 for never.
        compress_bytes: Least answer that is compressed for a client that accepts gzip.

    """

    MAY_BE_0: ClassVar = ("request_timeout_s", "max_connection_age_s")
    max_head_bytes: int = 16 << 10
    max_body_bytes: int = 64 << 20
    request_timeout_s: float = 30.0
    idle_timeout_s: float = 300.0
    max_connection_age_s: float = 0.0
    compress_bytes: int = 1 << 10


@dataclass(slots=True, eq=False)
class HttpShared:
    """The state that the transport shares with its sessions. Loop-confined.

    Attributes:
        loop: Runs everything.
        options: Limits and timeouts.
        budget: The memory that clients can make the server take.
        executor: Runs decompression.
        handler: Answers requests; set when the transport starts.
        take_alike: Starts requests that are like earlier ones, before ``handler`` gets
            the others; set likewise.
        arrived: Requests that arrived in this round; see :meth:`hand_over`.
        clients: The clients; set by the transport.
        heads: Heads of requests by their bytes, since clients repeat them: equal bytes
            behind a whole request mean the same head.
        opened: Calls that began in this round and have a deadline.
        dirty: Sessions that have output; served once, at the end of the round.
        loop_ident: The loop's thread; valid once the loop runs the transport.

    """

    loop: ServingLoop
    options: HttpOptions
    budget: MemoryBudget
    executor: Executor
    handler: HttpHandler = field(init=False)
    take_alike: TakeAlike = field(init=False)
    arrived: list[HttpRequestCall] = field(default_factory=list)
    clients: Clients[Any] = field(init=False)
    heads: dict[bytes, RequestHead] = field(default_factory=dict)
    opened: list[HttpRequestCall] = field(default_factory=list)
    dirty: list[Callable[[], None]] = field(default_factory=list)
    loop_ident: int = field(default_factory=get_ident)

    def keep_head(self, raw: bytes, head: RequestHead) -> None:
        """Keeps what a head was parsed to, if it is short and nothing else is in it."""
        if head.is_plain and len(raw) <= _MAX_HEAD_BYTES:
            if len(self.heads) >= _MAX_HEADS:
                self.heads.clear()
            self.heads[raw] = head

    def hand_over(self, now_s: float) -> None:
        """Hands over the requests that arrived; those that are alike, together."""
        calls, self.arrived = self.arrived, []
        if not calls:
            return
        left: Sequence[HttpRequestCall]
        try:
            left = self.take_alike(calls)  # type: ignore[assignment]  # some of these
        except Exception as error:
            left = ()
            for call in calls:
                call.crash(error)
        for call in left:
            self.start(call)

    def start(self, call: HttpRequestCall) -> None:
        """Hands a request to its handler, unless it has ended."""
        if not call.is_finished:
            try:
                self.handler(call)
            except Exception as error:
                call.crash(error)

    def flush(self, now_s: float) -> None:
        """Writes what the round brought, and sets the deadlines of what it left open."""
        calls, self.opened = self.opened, []
        for call in calls:
            if not call.is_finished and call.deadline_s is not None:
                call.timer = self.loop.call_at(call.deadline_s, call.expire)
        dirty, self.dirty = self.dirty, []
        for flush in dirty:
            flush()
