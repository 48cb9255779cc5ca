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
from tfs.core.errors import DeadlineExceeded, Internal, ServingError
from tfs.core.http_call import BINARY, HTTP_STATUS, JSON, HttpError, HttpReply
from tfs.core.loop.serving_loop import Timer
from tfs.core.servable import CancelToken
from tfs.core.tensor_view import Buffer
from tfs.frontends.budget import Ticket
from tfs.frontends.http1.request_parser import RequestHead

log = logging.getLogger(__name__)

_GZIP: Final = 31  # zlib's window bits
_QUICK_LEVEL: Final = 1
_PACKED_LINES: Final = b"Content-Encoding: gzip\r\nVary: Accept-Encoding\r\n"
_JOINED_BYTES: Final = 4096


class CallOwner(Protocol):
    """What a call needs of its connection. Loop-confined."""

    peer: Peer
    loop_ident: int
    compress_bytes: int  # the least answer that is compressed
    post: Callable[[Callable[[], None]], None]  # to the loop

    def take_room(self, call: HttpRequestCall, num_bytes: int, *, is_all: bool) -> bool:
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
        held_bytes: What it counts in the budget besides.
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
        self, owner: CallOwner, head: RequestHead, held_bytes: int, opened_s: float
    ) -> None:
        self.head = head
        self.opened_s = opened_s
        self.keeps_alive = head.keeps_alive
        self.held_bytes = held_bytes
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
        return self.head.metadata

    @property
    def peer(self) -> Peer:
        return self._owner.peer

    @property
    def cancel(self) -> CancelToken:
        if self._cancel is None:
            self._cancel = CancelToken()
        return self._cancel

    def take_room(self, num_bytes: int, *, is_all: bool = False) -> bool:
        return self.is_finished or self._owner.take_room(self, num_bytes, is_all=is_all)

    def on_cancel(self, fn: Callable[[], None]) -> None:
        if self._cancel is not None and self._cancel.error is not None:
            fn()
            return
        if self._on_cancel is None:
            self._on_cancel = []
        self._on_cancel.append(fn)

    # -- finishing ---------------------------------------------------------------------

    def reply(self, message: bytes) -> None:
        self._send((message,), len(message), 200, self.content_type)

    def reply_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        length = sum(map(len, parts))
        if self.length_header and len(parts) > 1:
            more = f"{self.length_header}: {len(parts[0])}\r\n".encode()
            self._send(parts, length, 200, BINARY, more)
        else:
            self._send(parts, length, 200, self.content_type)

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
        length = sum(map(len, reply.body))
        more = _lines(reply.headers)
        self._send(reply.body, length, reply.status, reply.content_type, more)

    def _send(
        self,
        body: Sequence[bytes | memoryview],
        length: int,
        status: int,
        content_type: str,
        more: bytes = b"",
    ) -> None:
        """Finishes the call; ``more`` are lines of headers."""
        if length >= self._owner.compress_bytes and self.head.accepts_gzip:
            # On the answering thread: ten megabytes of metrics take a tenth of a second.
            packer = zlib.compressobj(_QUICK_LEVEL, zlib.DEFLATED, _GZIP)
            body = (b"".join([*map(packer.compress, body), packer.flush()]),)
            length, more = len(body[0]), more + _PACKED_LINES
        if self.more_headers:
            more += _lines(self.more_headers)
        first = b"%b%d\r\n%b" % (_before_length(status, content_type), length, more)
        if get_ident() == self._owner.loop_ident:
            self._finish(first, body, length)
        else:
            self._owner.post(functools.partial(self._finish, first, body, length))

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
        self.fail(error)
        for fn in waiting or ():
            try:
                fn()
            except Exception:
                log.exception("event=on_cancel_failed method=%s", self.method)

    def crash(self, error: Exception) -> None:
        """Ends the call because its handler raised. On the loop."""
        log.error("event=handler_failed method=%s", self.method, exc_info=error)
        self.fail(
            error if isinstance(error, ServingError) else Internal("internal error")
        )

    def answer_instead(self, error: ServingError) -> None:
        """Replaces an answer that there is no room for."""
        reply = failure(error)
        length = len(reply.body[0])
        before, more = _before_length(reply.status, JSON), _lines(self.more_headers)
        first = b"%b%d\r\n%b" % (before, length, more)
        self.answer = self._whole(first, reply.body, length)

    def _finish(
        self, first: bytes, body: Sequence[bytes | memoryview], length: int
    ) -> None:
        if self.is_finished:
            return
        self.is_finished = True
        self._on_cancel = None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self.answer = self._whole(first, body, length)
        self._owner.on_answered(self)

    def _whole(
        self, first: bytes, body: Sequence[bytes | memoryview], length: int
    ) -> Sequence[Buffer]:
        """Returns an answer as it is sent; a short one in one piece."""
        head = self.head
        if not self.keeps_alive:
            first += b"Connection: close\r\n"
        elif not head.minor:
            first += b"Connection: keep-alive\r\n"
        if head.verb == "HEAD" or not length:
            body = ()
        parts = (first, b"\r\n", *body)
        return parts if length > _JOINED_BYTES else (b"".join(parts),)


def failure(error: ServingError) -> HttpReply:
    """Returns the answer that tells an error."""
    status, headers = HTTP_STATUS[error.code], []
    if isinstance(error, HttpError):
        status, headers = error.status, [*error.headers]
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        headers.append(("Retry-After", str(max(1, round(retry_after_s)))))
    text = error.message.encode("utf-8", "replace").decode()
    return HttpReply((orjson.dumps({"error": text}),), status, JSON, headers)


def _lines(headers: Sequence[tuple[str, str]]) -> bytes:
    """Returns headers as they are sent."""
    return b"".join(
        f"{name}: {value}\r\n".encode("latin-1", "replace") for name, value in headers
    )


@functools.lru_cache(64)
def _before_length(status: int, content_type: str) -> bytes:
    reason = "Client Closed Request" if status == 499 else HTTPStatus(status).phrase
    return (
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: {content_type}\r\n"
        "Content-Length: "
    ).encode("latin-1", "replace")
