"""A call that is another in all but some respects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from tfs.core.call import Call, Metadata, Peer
from tfs.core.errors import ServingError, shown_to_callers
from tfs.core.http_call import HttpCall, HttpReply
from tfs.core.servable import CancelToken

C = TypeVar("C", bound=Call)


class DelegatingCall(Generic[C]):
    """A :class:`tfs.core.call.Call` that is another one in all but its message.

    Args:
        call: The other.
        message: What its handler gets.

    """

    __slots__ = ("_call", "message")

    def __init__(self, call: C, message: bytes | memoryview) -> None:
        self._call = call
        self.message = message

    @property
    def method(self) -> str:
        return self._call.method

    @property
    def deadline_s(self) -> float | None:
        return self._call.deadline_s

    @property
    def opened_s(self) -> float:
        return self._call.opened_s

    @property
    def metadata(self) -> Metadata:
        return self._call.metadata

    @property
    def peer(self) -> Peer:
        return self._call.peer

    @property
    def cancel(self) -> CancelToken:
        return self._call.cancel

    def reply(self, message: bytes) -> None:
        self._call.reply(message)

    def reply_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        self.reply(b"".join(parts))

    def fail(self, error: ServingError) -> None:
        self._call.fail(error)

    def on_cancel(self, fn: Callable[[], None]) -> None:
        self._call.on_cancel(fn)

    def take_room(self, num_bytes: int, *, is_all: bool = False) -> bool:
        return self._call.take_room(num_bytes, is_all=is_all)


class TranslatedCall(DelegatingCall[HttpCall]):
    """An HTTP request that a handler of gRPC answers; its errors name no paths.

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

    def fail(self, error: ServingError) -> None:
        self._call.fail(shown_to_callers(error))
