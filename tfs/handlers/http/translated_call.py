"""Calls over an HTTP request whose message or reply has another form."""

from __future__ import annotations

from collections.abc import Callable

from tfs.core.http_call import HttpCall, HttpReply
from tfs.handlers.delegating_call import DelegatingCall


class TranslatedCall(DelegatingCall[HttpCall]):
    """An HTTP request that a handler of gRPC answers.

    Args:
        call: The request.
        message: What the handler gets.
        answer: Makes the HTTP answer from the handler's reply.

    """

    __slots__ = ("_answer",)

    def __init__(
        self, call: HttpCall, message: bytes, answer: Callable[[bytes], HttpReply]
    ) -> None:
        super().__init__(call, message)
        self._answer = answer

    def reply(self, message: bytes) -> None:
        self._call.respond(self._answer(message))
