"""An HTTP request without a transport: tests read how a handler answered it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import orjson

from tfs.core.call import Peer
from tfs.core.http_call import BINARY, JSON, HttpReply
from tfs.testing.fake_call import FakeCall


class FakeHttpCall(FakeCall):
    """Implements :class:`tfs.core.http_call.HttpCall`. Confined to one thread.

    Attributes:
        answer: The answer; None until there is one, or if the call failed.

    """

    def __init__(
        self,
        verb: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.headers = dict(headers or {})
        super().__init__(
            body,
            method=f"{verb} {path}",
            metadata=tuple(self.headers.items()),
            peer=Peer("127.0.0.1:1", "http", is_loopback=True),
        )
        self.verb = verb
        self.path, _, self.query = path.partition("?")
        self.head: Hashable = (verb, path, self.metadata)
        self.content_type = JSON
        self.length_header = ""
        self.more_headers: Sequence[tuple[str, str]] = ()
        self.answer: HttpReply | None = None

    @staticmethod
    def reply_all(
        calls: Sequence[Any],
        messages: Sequence[bytes | tuple[bytes | memoryview, ...]],
    ) -> None:
        for call, message in zip(calls, messages, strict=True):
            call.reply_parts((message,) if isinstance(message, bytes) else message)

    def respond(self, reply: HttpReply) -> None:
        self.answer = reply
        self._finish(b"".join(reply.body))

    def reply(self, message: bytes) -> None:
        self.reply_parts((message,))

    def reply_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        reply = HttpReply(parts, content_type=self.content_type)
        if self.length_header and len(parts) > 1:
            length = self.length_header, str(len(parts[0]))
            reply = HttpReply(parts, 200, BINARY, (length,))
        self.respond(reply)

    @property
    def document(self) -> object:
        """The JSON of the answer."""
        assert isinstance(self.outcome, bytes), self.outcome
        return orjson.loads(self.outcome)
