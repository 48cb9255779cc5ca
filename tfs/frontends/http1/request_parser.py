"""Turns bytes of one connection into requests, by httptools (llhttp).

llhttp is strict: a body with two lengths, or with a length and chunks, ends the
connection. What it does not limit is limited here: the head, the body, and what chunks
cost beside their contents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import httptools

from tfs.core.http_call import HttpError, accepted
from tfs.frontends.inflation import Encoding

_CHUNK_OVERHEAD: Final = 8  # bytes of chunk heads for each byte of content
_LEAST_OVERHEAD: Final = 16 << 10
_CHUNKED: Final = "chunked"
_ONCE: Final = ("host", "transfer-encoding")  # llhttp sees to content-length


class RequestHead:
    """The head of a request. Immutable.

    Attributes:
        verb: ``GET`` and so on.
        path: As sent, without the query.
        query: What is behind the question mark.
        headers: Names in lower case; of equal ones the last.
        metadata: The same as a sequence; one object for all requests with this head.
        length: Bytes of the body; None if it comes in chunks, of unknown number.
        encoding: How the body is compressed; None for a way that is not offered.
        accepts_gzip: Whether the answer may be compressed.
        is_plain: Whether nothing is to be done for it but to wait for a body of that length.
        keeps_alive: Whether the client wants to send more requests.
        minor: HTTP/1.0 or 1.1.

    """

    def __init__(
        self,
        verb: str,
        target: str,
        headers: Mapping[str, str],
        minor: int,
        *,
        keeps_alive: bool,
    ) -> None:
        self.verb = verb
        self.path, _, self.query = target.partition("?")
        if self.path[:1] != "/" and "://" in self.path[:8]:
            # In absolute form, as clients of a proxy send it.
            self.path = f"/{self.path.partition('://')[2].partition('/')[2]}"
        self.headers = headers
        self.metadata = tuple(headers.items())
        self.minor = minor
        self.keeps_alive = keeps_alive
        self.length: int | None = None
        if "transfer-encoding" not in headers:
            length = headers.get("content-length", "0")
            self.length = int(length) if length.isdigit() else 0
        encoding = headers.get("content-encoding", "identity").lower()
        self.encoding = _ENCODINGS.get(encoding)
        self.accepts_gzip = "gzip" in accepted(headers.get("accept-encoding", ""))
        self.is_plain = (
            self.length is not None
            and self.encoding is Encoding.IDENTITY
            and "expect" not in headers
            and "upgrade" not in headers
        )


_ENCODINGS: Final = {
    "identity": Encoding.IDENTITY,
    "gzip": Encoding.GZIP,
    "x-gzip": Encoding.GZIP,
    "deflate": Encoding.DEFLATE,
}


class RequestParser:
    """Reads requests of one connection, in order. Loop-confined.

    Args:
        on_head: Takes the head of the next request; raises HttpError to refuse it.
        on_body: Takes more of its body; raises HttpError to refuse it.
        on_complete: Is told that the request is whole.
        max_head_bytes: Longest head.

    """

    def __init__(
        self,
        on_head: Callable[[RequestHead], None],
        on_body: Callable[[bytes], None],
        on_complete: Callable[[], None],
        max_head_bytes: int,
    ) -> None:
        self._take_head = on_head
        self._take_body = on_body
        self._complete = on_complete
        self._max_head_bytes = max_head_bytes
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._lines: list[bytes] = []  # of the head, but the first and any upgrade
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._fed_bytes = 0  # since the present head, or the present body, began
        self._body_bytes = 0
        self.is_in_head = False
        self.is_in_body = False

    @property
    def is_inside(self) -> bool:
        """Whether a request has begun and is not whole."""
        return self.is_in_head or self.is_in_body

    def feed(self, data: bytes) -> None:
        """Takes bytes of the client.

        Raises:
            HttpError: They are no request, or one that is refused.

        """
        try:
            while data:
                data = self._feed_once(data)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if isinstance(cause, HttpError):
                raise cause from None
            raise
        except httptools.HttpParserError as error:
            raise HttpError(400, f"Malformed request: {error}") from None
        if self.is_in_head:
            self._check_head(self._fed_bytes)
        allowed = _CHUNK_OVERHEAD * self._body_bytes + _LEAST_OVERHEAD
        if self.is_in_body and self._fed_bytes - self._body_bytes > allowed:
            raise HttpError(400, "chunks of next to nothing; send larger ones")

    def _feed_once(self, data: bytes) -> bytes:
        """Returns what is to be fed again; nothing after most requests.

        Whoever offers to speak another protocol goes on in this one; llhttp would leave
        the body to the other.
        """
        self._fed_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            parser, self._parser = self._parser, httptools.HttpRequestParser(self)
            version = parser.get_http_version().encode()
            first = b"%b %b HTTP/%b" % (parser.get_method(), self._target, version)
            head = b"\r\n".join((first, *self._lines, b"", b""))
            return head + data[upgrade.args[0] :]
        return b""

    # -- of httptools ----------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.is_in_head = True
        self._head_bytes = self._fed_bytes = 0
        self._target = b""
        self._lines = []
        self._headers = {}

    def on_url(self, part: bytes) -> None:
        self._target += part
        self._check_head(len(self._target))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        self._check_head(self._head_bytes + len(self._target))
        if not self.is_in_head:
            return  # a trailer
        key = name.decode("latin-1").lower()
        if key in _ONCE and key in self._headers:
            raise HttpError(400, f"Malformed request: two headers {key}")
        # llhttp leaves the blanks that may be behind it.
        self._headers[key] = value.rstrip(b" \t").decode("latin-1")
        if key != "upgrade":
            self._lines.append(b"%b: %b" % (name, value))

    def on_headers_complete(self) -> None:
        self.is_in_head = False
        self.is_in_body = True
        self._fed_bytes = self._body_bytes = 0
        parser = self._parser
        if parser.get_method() == b"CONNECT":
            raise HttpError(400, "this is no proxy")
        if self._headers.get("transfer-encoding", _CHUNKED).lower() != _CHUNKED:
            raise HttpError(501, "bodies come in chunks, or with their length")
        if not parser.should_upgrade():
            self._take_head(
                RequestHead(
                    parser.get_method().decode("latin-1"),
                    self._target.decode("latin-1"),
                    self._headers,
                    0 if parser.get_http_version() == "1.0" else 1,
                    keeps_alive=parser.should_keep_alive(),
                )
            )

    def on_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        self._take_body(data)

    def on_message_complete(self) -> None:
        self.is_in_body = False
        if not self._parser.should_upgrade():
            self._complete()

    def _check_head(self, num_bytes: int) -> None:
        if num_bytes > self._max_head_bytes:
            raise HttpError(
                431,
                f"the head of a request is longer than {self._max_head_bytes} bytes",
            )
