"""One HTTP request as handlers see it."""

from __future__ import annotations

import functools
import logging
import zlib
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from threading import get_ident
from typing import Final, Protocol

import orjson

from tfs.core.call import Metadata, Peer
from tfs.core.errors import (
    Cancelled,
    DeadlineExceeded,
    Internal,
    ServingError,
)
from tfs.core.http_call import BINARY, HTTP_STATUS, JSON, HttpReply
from tfs.core.loop.serving_loop import Timer
from tfs.core.servable import CancelToken
from tfs.core.tensor_view import Buffer
from tfs.frontends.budget import Ticket
from tfs.frontends.http1.request_parser import RequestHead

log = logging.getLogger(__name__)

_GZIP: Final = 31  # zlib's window bits
_QUICK_LEVEL: Final = 1
_JOINED_BYTES: Final = 4096


class CallOwner(Protocol):
    """What a call needs of its connection. Loop-confined."""

    peer: Peer
    loop_ident: int
    compress_bytes: int

    @property
    def post(self) -> Callable[[Callable[[], None]], None]:
        """Runs a function on the loop."""
        ...

    def take_room(
        self, call: HttpRequestCall, num_bytes: int, *, is_answer: bool
    ) -> bool:
        """See :meth:`tfs.core.call.Call.take_room`."""
        ...

    def on_answered(self, call: HttpRequestCall) -> None:
        """Notes that a call has its answer, which goes out when its turn comes."""
        ...


class HttpRequestCall:
    """See :class:`tfs.core.http_call.HttpCall`.

    Attributes:
        answer: The bytes to send; empty until the call is finished.
        content_type: What ``reply`` sends.
        length_header: Tells how long the first of several parts is.
        is_finished: Whether it was finished, or given up.
        keeps_alive: Whether the connection goes on behind its answer.
        timer: Ends it at its deadline, if it has outlived its round.
        ticket: What was admitted for its body, or for what it unpacks to.
        kept_bytes: What it counts in the budget besides.
        opened_s: When its head arrived.

    """

    # What few calls change has its value here, so that it takes no time to make one.
    message: bytes | memoryview = b""
    deadline_s: float | None = None
    answer: Sequence[Buffer] = ()
    timer: Timer | None = None
    content_type = JSON
    length_header = ""
    is_finished = False
    ticket: Ticket | None = None
    more_headers: Sequence[tuple[str, str]] = ()
    _cancel: CancelToken | None = None
    _on_cancel: list[Callable[[], None]] | None = None

    def __init__(
        self, owner: CallOwner, head: RequestHead, kept_bytes: int, opened_s: float
    ) -> None:
        self.head = head
        self.opened_s = opened_s
        self.keeps_alive = head.keeps_alive
        self.kept_bytes = kept_bytes
        self._owner = owner

    @property
    def verb(self) -> str:
        return self.head.verb

    @property
    def path(self) -> str:
        return self.head.path

    @property
    def query(self) -> str:
        return self.head.query

    @property
    def headers(self) -> Mapping[str, str]:
        return self.head.headers

    @property
    def method(self) -> str:
        return f"{self.head.verb} {self.head.path}"

    @property
    def metadata(self) -> Metadata:
        return tuple(self.head.headers.items())

    @property
    def peer(self) -> Peer:
        return self._owner.peer

    @property
    def cancel(self) -> CancelToken:
        if self._cancel is None:
            self._cancel = CancelToken()
        return self._cancel

    def take_room(self, num_bytes: int, *, is_answer: bool = False) -> bool:
        return self._owner.take_room(self, num_bytes, is_answer=is_answer)

    def on_cancel(self, fn: Callable[[], None]) -> None:
        if self._cancel is not None and self._cancel.error is not None:
            fn()
            return
        if self._on_cancel is None:
            self._on_cancel = []
        self._on_cancel.append(fn)

    # -- finishing ---------------------------------------------------------------------

    def reply(self, message: bytes) -> None:
        owner = self._owner
        if (  # nearly always
            len(message) < owner.compress_bytes
            and self.head.is_plainly_answered
            and self.keeps_alive
            and not self.more_headers
            and get_ident() == owner.loop_ident
        ):
            before = _before_length(200, self.content_type)
            self._finish((b"%b%d\r\n\r\n%b" % (before, len(message), message),))
        else:
            self.reply_parts((message,))

    def reply_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        headers: Sequence[tuple[str, str]] = ()
        content_type = self.content_type
        if self.length_header and len(parts) > 1:
            content_type = BINARY
            headers = ((self.length_header, str(len(parts[0]))),)
        self.respond(HttpReply(parts, 200, content_type, headers))

    @staticmethod
    def reply_all(
        calls: Sequence[HttpRequestCall],
        messages: Sequence[bytes | tuple[bytes | memoryview, ...]],
    ) -> None:
        owner = calls[0]._owner
        if get_ident() != owner.loop_ident:
            owner.post(functools.partial(HttpRequestCall.reply_all, calls, messages))
            return
        for call, message in zip(calls, messages, strict=True):
            if isinstance(message, bytes):
                call.reply(message)
            else:
                call.reply_parts(message)

    def fail(self, error: ServingError) -> None:
        self.respond(failure(error))

    def respond(self, reply: HttpReply) -> None:
        # On the answering thread: ten megabytes of metrics take a tenth of a second.
        reply = _packed(self.head, reply, self._owner.compress_bytes)
        if get_ident() == self._owner.loop_ident:
            self._finish_with(reply)
        else:
            self._owner.post(functools.partial(self._finish_with, reply))

    def expire(self) -> None:
        """Ends the call because its deadline has passed. On the loop."""
        where = "was being computed" if self.cancel.begun_s else "waited in a queue"
        text = f"Deadline Exceeded: the request took too long; it {where}"
        self.cut_off(DeadlineExceeded(text))

    def cut_off(self, error: ServingError) -> None:
        """Ends the call without its handler. On the loop."""
        if self.is_finished:
            return
        self.cancel.cancel(error)
        waiting, self._on_cancel = self._on_cancel, None
        self._finish_with(failure(error))
        for fn in waiting or ():
            try:
                fn()
            except Exception:
                log.exception("event=on_cancel_failed method=%s", self.method)

    def drop(self) -> None:
        """Ends the call because its client is gone. On the loop."""
        self.cut_off(Cancelled("the client is gone"))

    def crash(self, error: Exception) -> None:
        """Ends the call because its handler raised. On the loop."""
        log.error("event=handler_failed method=%s", self.method, exc_info=error)
        self.fail(
            error if isinstance(error, ServingError) else Internal("internal error")
        )

    def answer_instead(self, error: ServingError) -> None:
        """Replaces an answer that there is no room for."""
        self.answer = self._written(failure(error))

    def _finish_with(self, reply: HttpReply) -> None:
        self._finish(self._written(reply))

    def _finish(self, answer: Sequence[Buffer]) -> None:
        if self.is_finished:
            return
        self.is_finished = True
        self._on_cancel = None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.answer = answer
        self._owner.on_answered(self)

    def _written(self, reply: HttpReply) -> Sequence[Buffer]:
        """Returns an answer as it is sent; a short one in one piece."""
        head, body = self.head, reply.body
        length = sum(map(len, body))
        extra = b""
        for name, value in (*reply.headers, *self.more_headers):
            extra += f"{name}: {value}\r\n".encode("latin-1", "replace")
        if not self.keeps_alive:
            extra += b"Connection: close\r\n"
        elif not head.minor:
            extra += b"Connection: keep-alive\r\n"
        before = _before_length(reply.status, reply.content_type)
        if head.verb == "HEAD" or not length:
            body = ()
        first = b"%b%d\r\n%b\r\n" % (before, length, extra)
        if length > _JOINED_BYTES:
            return (first, *body)
        return (b"".join((first, *body)),)


def failure(error: ServingError) -> HttpReply:
    """Returns the answer that tells an error."""
    headers: list[tuple[str, str]] = []
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        headers.append(("Retry-After", str(max(1, round(retry_after_s)))))
    return HttpReply(
        (orjson.dumps({"error": error.message.encode("utf-8", "replace").decode()}),),
        HTTP_STATUS[error.code],
        JSON,
        headers,
    )


_PACKED_HEADERS: Final = (("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding"))


def _packed(head: RequestHead, reply: HttpReply, compress_bytes: int) -> HttpReply:
    """Returns an answer compressed, if it is long and its client takes that."""
    if not head.accepts_gzip or sum(map(len, reply.body)) < compress_bytes:
        return reply
    packer = zlib.compressobj(_QUICK_LEVEL, zlib.DEFLATED, _GZIP)
    body = [*map(packer.compress, reply.body), packer.flush()]
    headers = (*reply.headers, *_PACKED_HEADERS)
    return HttpReply(body, reply.status, reply.content_type, headers)


@functools.lru_cache(64)
def _before_length(status: int, content_type: str) -> bytes:
    reason = "Client Closed Request" if status == 499 else HTTPStatus(status).phrase
    return (
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\n"
        "Content-Length: "
    ).encode("latin-1", "replace")
