"""What a request has taken by the time its version is known, and gives back in the end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tfs.codec.predict_response import Reply
from tfs.core.call import Call
from tfs.core.errors import Code, ServingError, forget_frames, serving_error
from tfs.core.servable import Servable
from tfs.core.servable_handle import ServableHandle
from tfs.core.tensor_view import LARGE_BYTES
from tfs.handlers.limits.answered_request import AnsweredRequest, Record, RequestLog
from tfs.handlers.limits.model_gate import ModelGate
from tfs.handlers.limits.request_gate import RequestGate
from tfs.handlers.limits.request_stats import RequestStats

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Admission:
    """The pin, the places and the counters of requests to one signature. Immutable.

    Attributes:
        handle: The pinned version; released once for each request.
        gate: The server's gate, which each request leaves once.
        model: The model's gate, which each request leaves once.
        stats: Counts the requests, each of which was begun there.
        method: The RPC's name in logs.
        signature_name: The signature's key; "" for several.
        logs: Where they are logged.

    """

    handle: ServableHandle[Servable]
    gate: RequestGate
    model: ModelGate
    stats: RequestStats
    method: str
    signature_name: str
    logs: tuple[RequestLog, ...] = ()

    def finish(
        self,
        call: Call,
        begun_s: float,
        done_s: float,
        answer: Reply | ServingError,
        record: Callable[[Reply], tuple[bytes | memoryview, Reply]] | None = None,
    ) -> None:
        """Answers a request, logs and counts it, and gives back what it took. Any thread.

        Args:
            call: The request.
            begun_s: When it was taken, by the gate's clock.
            done_s: When its outcome was known.
            answer: The reply, or why there is none.
            record: Returns what is logged of a reply; needed if there are logs.

        """
        code = _OK
        self.leave()
        try:
            if isinstance(answer, ServingError):
                code = answer.code
                call.fail(answer)
                return
            if record is not None and self.logs:
                self._log(len(call.message), partial(record, answer))
            stats = self.stats
            if isinstance(answer, bytes):
                if stats.answer_bytes or len(answer) >= LARGE_BYTES:
                    stats.note_answer(len(answer))
                call.reply(answer)
            else:
                stats.note_answer(sum(map(len, answer)))
                call.reply_parts(answer)
        except Exception as error:
            failure = self.failure_of(error)
            code = failure.code
            call.fail(failure)
        finally:
            self.end(call, code, begun_s, done_s)

    def _log(self, num_bytes: int, record: Record) -> None:
        servable = self.handle.id
        request = AnsweredRequest(
            self.method,
            servable.name,
            servable.version,
            self.signature_name,
            num_bytes,
            record,
        )
        for each in self.logs:
            try:
                each(request)
            except Exception as error:  # not the problem of who asked
                log.warning(
                    "event=request_not_logged servable=%s why=%r",
                    servable.slashed,
                    error,
                )

    def failure_of(self, error: Exception) -> ServingError:
        """Returns the error that the caller gets if making its answer raised one."""
        failure = serving_error(error, f"{self.handle.id.slashed}: {self.method}")
        forget_frames(failure)  # frames keep the request and its answer alive
        return failure

    def leave(self) -> None:
        """Gives the places of a request back. Any thread.

        This comes before its reply. A client that keeps as many requests in flight as it
        may sends the next one as soon as it has this reply.
        """
        self.model.leave()
        self.gate.leave()

    def end(self, call: Call, code: Code, begun_s: float, done_s: float) -> None:
        """Counts a request that has left and was answered; unpins its version.

        Args:
            call: The request, finished.
            code: How it ended, unless its caller gave up before.
            begun_s: When it was taken, by the gate's clock.
            done_s: When its outcome was known.

        """
        cancel = call.cancel
        if cancel.error is not None:
            code = cancel.error.code
        if code is _OK:
            self.stats.end_answered(call.opened_s, begun_s, cancel.begun_s, done_s)
        else:
            self.stats.end(code, begun_s)
        if cancel.trace is not None:
            cancel.trace.end(code, begun_s, done_s, self.gate.now())
        self.handle.release()


_OK = Code.OK  # kept because looking a member up in an enum is slow
