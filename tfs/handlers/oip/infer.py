"""ModelInfer and /infer as Predict: one conversion in, one out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tfs.codec.oip.infer_json import (
    WantedAnswer,
    write_binary_replies,
    write_json_reply,
)
from tfs.codec.oip.infer_messages import (
    READER,
    is_quickly_written,
    write_raw,
    write_raw_replies,
    write_typed,
)
from tfs.codec.oip.infer_view import InferRequestView, InferSettings
from tfs.codec.predict_response import Answerer, Reply
from tfs.core.call import PRIORITY_KEY, Call, Metadata
from tfs.core.servable import Tensors
from tfs.handlers.delegating_call import DelegatingCall
from tfs.handlers.request_format import ReplyWriter

JSON_BYTES: Final = "Inference-Header-Content-Length"
_LOW: Final = ((PRIORITY_KEY, "low"),)


class SetCall(DelegatingCall[Call]):
    """A call whose request sets its deadline or its priority.

    Args:
        call: The call as it came.
        settings: What its request asks for.
        now_s: The time by the clock of deadlines.

    """

    __slots__ = ("_deadline_s", "_metadata")

    def __init__(self, call: Call, settings: InferSettings, now_s: float) -> None:
        super().__init__(call, call.message)
        self._deadline_s = call.deadline_s
        if settings.timeout_s is not None:
            own_s = now_s + settings.timeout_s
            self._deadline_s = min(own_s, call.deadline_s or own_s)
        self._metadata = (*call.metadata, *_LOW) if settings.is_low else call.metadata

    @property
    def deadline_s(self) -> float | None:
        return self._deadline_s

    @property
    def metadata(self) -> Metadata:
        return self._metadata

    def reply_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        self._call.reply_parts(parts)


@dataclass(frozen=True, slots=True)
class InferReplies:
    """Writes ``ModelInferResponse``. A ``ReplyWriter``. Immutable.

    Attributes:
        request_id: What the answer repeats; only requests without one come together.
        is_raw: Whether contents are raw.

    """

    request_id: bytes = b""
    is_raw: bool = True

    def write_if_quick(self, answerer: Answerer, outputs: Tensors) -> Reply | None:
        if not is_quickly_written(outputs, is_raw=self.is_raw):
            return None
        return self.write(answerer, outputs)

    def write(self, answerer: Answerer, outputs: Tensors) -> Reply:
        write = write_raw if self.is_raw else write_typed
        return write(*answerer[:2], outputs, self.request_id)

    def write_all(
        self, answerer: Answerer, outputs: Tensors, num_rows: int, num_replies: int
    ) -> Sequence[bytes] | None:
        return write_raw_replies(*answerer[:2], outputs, num_rows, num_replies)


class InferFormat:
    """``ModelInferRequest`` and ``ModelInferResponse``. See ``RequestFormat``.

    Args:
        now: Returns the time by the clock of deadlines.

    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.reader: Final = READER
        self.replies: Final = InferReplies()
        self._now = now

    def call_of(self, call: Call, request: InferRequestView) -> Call:
        return set_call(call, request.settings, self._now)

    def replies_to(self, request: InferRequestView) -> InferReplies:
        return InferReplies(request.request_id, request.is_raw)


def set_call(call: Call, settings: InferSettings, now: Callable[[], float]) -> Call:
    """Returns the call with what its request says of deadline and priority."""
    if not settings.changes_call:
        return call
    return SetCall(call, settings, now())


@dataclass(frozen=True, slots=True)
class JsonReplies(ReplyWriter):
    """Writes answers of /infer. Immutable."""

    wanted: WantedAnswer

    def write(self, answerer: Answerer, outputs: Tensors) -> Reply:
        return write_json_reply(*answerer[:2], outputs, self.wanted)

    def write_all(
        self, answerer: Answerer, outputs: Tensors, num_rows: int, num_replies: int
    ) -> Sequence[Reply] | None:
        # Only requests whose outputs are all binary come together.
        return write_binary_replies(*answerer[:2], outputs, num_rows, num_replies)
