"""An HTTP request without a transport: tests read how a handler answered it."""

from __future__ import annotations

from collections.abc import Sequence

from tfs.core.errors import ServingError
from tfs.core.http_call import HttpReply
from tfs.frontends.http1.call import failure
from tfs.testing.fake_call import FakeCall


class AskedCall(FakeCall):
    """Implements :class:`tfs.core.http_call.HttpCall`. Confined to one thread.

    Attributes:
        answer: What it was answered first; None while it was not.

    """

    def __init__(
        self, verb: str, target: str, body: bytes = b"", **headers: str
    ) -> None:
        super().__init__(body, method=f"{verb} {target}")
        self.verb = verb
        self.path, _, self.query = target.partition("?")
        self.headers = {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        self.more_headers: Sequence[tuple[str, str]] = ()
        self.answer: HttpReply | None = None

    def respond(self, reply: HttpReply) -> None:
        """Notes the first answer."""
        if self.answer is None:
            self.answer = reply

    def reply_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        self.respond(HttpReply(parts))

    def reply(self, message: bytes) -> None:
        self.reply_parts((message,))

    def fail(self, error: ServingError) -> None:
        self.respond(failure(error))

    @property
    def body(self) -> bytes:
        """The answer's; fails the test if there is none, or if it is no 200."""
        assert self.answer is not None
        body = b"".join(self.answer.body)
        assert self.answer.status == 200, body
        return body
