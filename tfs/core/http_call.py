"""The seam between the HTTP/1.1 transport and what answers it: a call with a path.

A request is a :class:`tfs.core.call.Call` as any other: its headers are the metadata,
its body is the message, and ``reply`` and ``fail`` finish it. Beside that it has what
HTTP has more of: a verb, a path, and answers of any status and content type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from tfs.core.call import BurstCall
from tfs.core.errors import Code, InvalidArgument

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
BINARY: Final = "application/octet-stream"

HTTP_STATUS: Final[Mapping[Code, int]] = {
    Code.OK: 200,
    Code.CANCELLED: 499,
    Code.UNKNOWN: 500,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.ABORTED: 409,
    Code.OUT_OF_RANGE: 400,
    Code.UNIMPLEMENTED: 501,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.DATA_LOSS: 500,
    Code.UNAUTHENTICATED: 401,
}
"""TensorFlow Serving's statuses (model_servers/http_rest_api_util.cc)."""

_REFUSED: Final = re.compile(r";\s*q=0(\.0*)?\s*(;|$)", re.IGNORECASE)


def accepted(header: str) -> Sequence[str]:
    """Returns what a header ``Accept`` or ``Accept-Encoding`` takes, in lower case, in order."""
    return [
        part.partition(";")[0].strip().lower()
        for part in header.split(",")
        if not _REFUSED.search(part)
    ]


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A whole answer. Immutable.

    Attributes:
        body: What is sent; the parts are joined.
        status: The HTTP status.
        content_type: Of the body.
        headers: More headers.

    """

    body: Sequence[bytes | memoryview]
    status: int = 200
    content_type: str = JSON
    headers: Sequence[tuple[str, str]] = field(default=())


class HttpError(InvalidArgument):
    """An error that HTTP has a status for, and maybe headers."""

    def __init__(
        self, status: int, message: str, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


def verb_not_taken(path: str, verb: str, taken: str) -> HttpError:
    """Returns the error for a verb where others are taken."""
    return HttpError(405, f"{path} takes {taken}, no {verb}", [("Allow", taken)])


class HttpCall(BurstCall, Protocol):
    """One HTTP request in progress. Finishing is thread-safe; the rest is the loop's.

    ``reply`` sends JSON with status 200; ``fail`` the status of the error's code and
    ``{"error": "message"}``. ``method`` is the verb and the path.

    Attributes:
        content_type: What ``reply`` sends; JSON unless a handler has set it.
        length_header: The header in which an answer in several parts tells how long the
            first of them is; it is sent as ``BINARY`` then. Empty if it does not tell.
        head: An object that requests with equal verb, target and headers may share.
            Handlers may keep by it what they made of these.
        more_headers: Headers that its answer has, whoever finishes it.

    """

    content_type: str
    length_header: str
    more_headers: Sequence[tuple[str, str]]

    @property
    def head(self) -> Hashable: ...

    @property
    def verb(self) -> str:
        """``GET``, ``POST`` and so on."""
        ...

    @property
    def path(self) -> str:
        """The path as it was sent, without the query; still URL-encoded."""
        ...

    @property
    def query(self) -> str:
        """What follows the question mark, URL-encoded; empty for none."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The request's headers, names in lower case; of equal ones the last."""
        ...

    def respond(self, reply: HttpReply) -> None:
        """Finishes the call with any answer; the first finish wins."""
        ...


TakeAlike = Callable[[Sequence[HttpCall]], Sequence[HttpCall]]
"""Starts those of some requests that are like earlier ones; returns the others, which
arrived together with them."""

HttpHandler = Callable[[HttpCall], None]
"""Answers requests, on the serving loop; never blocks. One that raises fails its call
with INTERNAL; the transport logs it."""
