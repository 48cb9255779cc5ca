"""ModelInfer and /infer as Predict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tfs.codec.oip.infer_messages import READER, InferReplies
from tfs.codec.oip.infer_view import InferRequestView, InferSettings
from tfs.core.call import PRIORITY_KEY, Call, Metadata
from tfs.handlers.delegating_call import DelegatingCall

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
