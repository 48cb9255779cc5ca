"""How to answer requests that differ from an earlier one only in their elements.

Usually the requests of one client differ only in the elements of their tensors. What
their bytes have in common is a :class:`~tfs.codec.request_reader.RequestTemplate`; a plan says
how one version answers such requests. It settles decoding, signature, checks, gate and
counters once, so that requests that arrive together are pinned, queued, answered and
counted together.

A plan contains nothing that could change. It belongs to one handle, that is to one
loaded version, and to one model gate, and both are looked up again each time the plan
is used. If a label moves, or a version is swapped, rolled back or unloaded, there is
another handle, and so another plan. Whatever a plan does not cover takes the ordinary
way, errors included.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final, cast

from tfs.codec.model_spec import ModelSpec
from tfs.codec.predict_request import write_predict_request
from tfs.codec.predict_response import PredictReplies, Reply
from tfs.core.call import TRACING, BurstCall, Call
from tfs.core.dtype import DType
from tfs.core.errors import Code, ServingError
from tfs.core.servable import (
    InferenceTask,
    Outcome,
    Servable,
    TaskForm,
    Tensors,
    Trace,
)
from tfs.core.servable_handle import ServableHandle
from tfs.core.signature import Signature
from tfs.core.tensor_view import Buffer, TensorView, join_elements
from tfs.handlers.decode_pool import DecodePool
from tfs.handlers.limits.admission import Admission
from tfs.handlers.request_format import ReplyWriter
from tfs.runtime.guest.current_span import current_span


class RequestPlan:
    """How a version answers requests that differ only in their elements.

    A :class:`~tfs.core.servable.TaskForm`. Immutable.

    Attributes:
        inputs: Name, dtype and shape of each tensor.
        num_rows: Rows of each request.
        signature: The signature that they ask for and fit; it has no defaults.
        signature_name: Key of the signature.
        answers: How their tasks end.

    """

    def __init__(
        self,
        inputs: Sequence[tuple[str, DType, tuple[int, ...]]],
        signature_name: str,
        signature: Signature,
        answers: PredictAnswers,
    ) -> None:
        """Checks the inputs against the signature.

        Raises:
            InvalidArgument: They do not fit.

        """
        self.inputs = inputs
        self.num_rows = signature.check_inputs(
            {name: TensorView(dtype, shape, b"") for name, dtype, shape in inputs}
        )
        self.signature = signature
        self.signature_name = signature_name
        self.answers = answers

    def inputs_of(self, elements: tuple[Buffer, ...]) -> Tensors:
        """Returns the inputs of a request with these elements."""
        return {
            name: TensorView(dtype, shape, data)
            for (name, dtype, shape), data in zip(self.inputs, elements, strict=True)
        }

    def joined(self, elements: Sequence[tuple[Buffer, ...]]) -> Tensors:
        """Returns the inputs of requests with these elements, one after the other."""
        if len(elements) == 1:
            return self.inputs_of(elements[0])
        return join_elements(self.inputs, elements, len(elements) * self.num_rows)

    def compute_now(
        self,
        servable: Servable,
        elements: Sequence[tuple[Buffer, ...]],
        traces: Sequence[Trace],
        begun_s: float,
    ) -> Outcome | None:
        """Computes requests with these elements together; see ``Servable.compute_now``.

        Args:
            servable: What the plan is for.
            elements: The elements of each request.
            traces: Those of the requests that are traced.
            begun_s: When they were begun.

        """
        name, num = self.signature_name, len(elements)
        num_rows = num * self.num_rows
        if not traces:
            return servable.compute_now(
                name, lambda: self.joined(elements), num_rows, num
            )
        with ExitStack() as stack:

            def begin() -> Tensors:  # called only if they are computed now
                batch = traces[0].join(traces[1:], num_rows, begun_s)
                batch.compute(self.answers.version, begun_s)
                stack.enter_context(current_span(batch.context))
                return self.joined(elements)

            return servable.compute_now(name, begin, num_rows, num)

    def tasks(
        self,
        calls: Sequence[BurstCall],
        elements: Sequence[tuple[Buffer, ...]],
        begun_s: float,
    ) -> list[InferenceTask]:
        """Returns a task for each call with its elements."""
        return [
            PlannedTask(self, call, own, begun_s)
            for call, own in zip(calls, elements, strict=True)
        ]

    def end_all(self, tasks: Sequence[InferenceTask], outputs: Tensors) -> None:
        """Ends tasks made by this plan; see ``TaskForm``."""
        planned = cast("Sequence[PlannedTask]", tasks)  # nothing else has this form
        self.answers.end_all(planned, outputs, self.num_rows)


class PlannedTask(InferenceTask):
    """One request of a plan. Its tensor views are made only if somebody looks at them."""

    __slots__ = ("_inputs", "_on_done", "begun_s", "call", "plan")

    # Other tasks may have these; planned tasks always do.
    output_filter: tuple[str, ...] = ()
    is_low: bool = False

    def __init__(
        self,
        plan: RequestPlan,
        call: BurstCall,
        elements: tuple[Buffer, ...],
        begun_s: float,
    ) -> None:
        # This replaces super().__init__, because there is one task per request.
        self.plan = plan
        self.form: TaskForm | None = plan
        self.call = call
        self.elements = elements
        self.begun_s = begun_s
        self.deadline_s = call.deadline_s
        self.cancel = call.cancel
        self.trace = self.cancel.trace
        self.num_rows = plan.num_rows
        self.signature_name = plan.signature_name
        self.signature = plan.signature
        self._inputs: Tensors | None = None
        self._on_done: Callable[[Outcome], None] | None = None

    @property
    def inputs(self) -> Tensors:
        """Named tensors over ``elements``."""
        inputs = self._inputs
        if inputs is None:
            inputs = self._inputs = self.plan.inputs_of(self.elements)
        return inputs

    @inputs.setter
    def inputs(self, inputs: Tensors) -> None:
        self._inputs = inputs
        self.form = None  # the form described the old elements

    @property
    def on_done(self) -> Callable[[Outcome], None]:
        """Takes the outcome of this task alone.

        It does not refer to the task. Whoever wraps it and sets the wrapper would close
        a cycle, and the request would stay in memory until the collector comes by.
        """
        return self._on_done or partial(
            self.plan.answers.end, self.call, self.begun_s, ()
        )

    @on_done.setter
    def on_done(self, on_done: Callable[[Outcome], None]) -> None:
        self._on_done = on_done
        self.form = None  # from here on the task ends by itself


_PREDICT: Final = PredictReplies()
_LARGE_LOGGED_BYTES: Final = 1 << 20


class PredictAnswers:
    """Encodes outcomes, finishes calls, counts them, and gives back what they took.

    It is for one signature of one version. Each request that has entered both gates and
    pinned the handle is ended exactly once, by any of the methods. It keeps the handle
    but not the servable, so it delays no unload.

    Args:
        admission: What each request has taken.
        decode_pool: Where long answers are written.
        writer: Encodes outputs.

    Attributes:
        asked: What the only request asked for, if that is to be logged.

    """

    __slots__ = (
        "_admission",
        "_answerer",
        "_decode_pool",
        "_gate",
        "_model",
        "_stats",
        "_writer",
        "asked",
    )

    def __init__(
        self,
        admission: Admission,
        decode_pool: DecodePool,
        writer: ReplyWriter,
    ) -> None:
        self._admission = admission
        self._model = admission.model
        who = admission.handle.id
        self._answerer = who.name, who.version, admission.signature_name
        self._gate = admission.gate
        self._stats = admission.stats
        self._decode_pool = decode_pool
        self._writer = writer
        self.asked: tuple[ModelSpec, Tensors, Sequence[str]] | None = None

    def are_for(self, handle: ServableHandle[Servable]) -> bool:
        """Tells whether this may still answer requests to that version.

        It is not if requests have to be logged, if its counters are no longer published,
        or if its answers have become long.
        """
        return (
            self._admission.handle is handle
            and not self._model.logs
            and not self._model.is_forgotten
            and not self._stats.is_forgotten
            and not self._stats.answer_bytes
        )

    @property
    def version(self) -> str:
        """The version that answers, as in "digits/3"."""
        return self._admission.handle.id.slashed

    def traces_of(self, calls: Sequence[BurstCall]) -> Sequence[Trace]:
        """Returns the traces of those calls that have one, named."""
        traces = [call.cancel.trace for call in calls if call.cancel.trace is not None]
        admission = self._admission
        for trace in traces:
            trace.name(admission.handle.id, admission.signature_name)
        return traces

    def enter_all(self, num: int) -> bool:
        """Enters ``num`` requests, pinned and in the server's gate, into the model's.

        Returns False, with nothing done, if the model has no room for all of them.
        """
        entered = self._model.enter_all(num)
        if entered:
            self._stats.begin(num)
        return entered

    def end(
        self,
        call: Call,
        begun_s: float,
        output_filter: tuple[str, ...],
        outcome: Outcome,
    ) -> None:
        """Ends one request; on another thread, if its answer is long. Any thread."""
        done_s = self._gate.now()
        response: Reply | None = None
        outputs: Tensors = {}
        if not isinstance(outcome, ServingError):
            try:
                if output_filter:
                    outcome = {name: outcome[name] for name in output_filter}
                outputs = outcome
                response = self._writer.write_if_quick(self._answerer, outputs)
                if response is None or (
                    self._admission.logs and _is_large(call, response)
                ):
                    later = functools.partial(
                        self._end_long, call, begun_s, done_s, outputs
                    )
                    self._decode_pool.write(later)
                    return
            except Exception as error:
                outcome = self._admission.failure_of(error)
        admission = self._admission
        admission.finish(
            call,
            begun_s,
            done_s,
            cast("Reply | ServingError", outcome if response is None else response),
            functools.partial(self._record, call, outputs) if admission.logs else None,
        )

    def _end_long(
        self, call: Call, begun_s: float, done_s: float, outputs: Tensors
    ) -> None:
        """Writes a long answer, if somebody still waits for it, and ends its request."""
        answer: Reply | ServingError | None = call.cancel.error
        if answer is None:
            try:
                answer = self._writer.write(self._answerer, outputs)
            except Exception as error:
                answer = self._admission.failure_of(error)
        record = functools.partial(self._record, call, outputs)
        self._admission.finish(call, begun_s, done_s, answer, record)

    def _record(
        self, call: Call, outputs: Tensors, reply: Reply
    ) -> tuple[bytes | memoryview, Reply]:
        """Returns a request and its reply as messages of Predict."""
        if isinstance(self._writer, PredictReplies):
            return call.message, reply
        assert self.asked is not None
        return (
            write_predict_request(*self.asked),
            _PREDICT.write(self._answerer, outputs),
        )

    def end_all(
        self, asked: Sequence[PlannedTask], outputs: Tensors, num_rows: int
    ) -> None:
        """Ends requests that were computed together, as ``end`` would each. On the loop.

        Args:
            asked: The requests, in the order of their rows.
            outputs: Outputs of all requests, joined; rows beyond theirs are padding.
            num_rows: Rows of each request.

        """
        done_s = self._gate.now()
        calls = [each.call for each in asked]
        replies = self._replies(calls, outputs, num_rows)
        if replies is None:
            for index, each in enumerate(asked):
                own = _rows_of(outputs, index, num_rows)
                self.end(each.call, each.begun_s, (), own)
            return
        try:
            self._reply_all(calls, replies)
        finally:
            self._count(asked, done_s)
            if TRACING.tracer is not None:
                self._end_traces(asked, done_s)
            self._release_all(len(calls))

    def end_now(
        self,
        calls: Sequence[BurstCall],
        begun_s: float,
        outcome: Outcome,
        num_rows: int,
        traces: Sequence[Trace] = (),
    ) -> None:
        """Ends requests that were begun and computed together, at once. On the loop.

        Args:
            calls: The calls of the requests, in the order of their rows. None had ended
                when they were begun, and nothing else has happened since.
            begun_s: When they were begun.
            outcome: Outputs of all requests, joined, or the error of all.
            num_rows: Rows of each request.
            traces: Those of the requests that are traced.

        """
        if len(calls) == 1 or isinstance(outcome, ServingError):
            for call in calls:
                self.end(call, begun_s, (), outcome)
            return
        done_s = self._gate.now()
        replies = self._replies(calls, outcome, num_rows)
        if replies is None:
            for index, call in enumerate(calls):
                self.end(call, begun_s, (), _rows_of(outcome, index, num_rows))
            return
        try:
            self._reply_all(calls, replies)
        finally:
            opened_s = calls[0].opened_s
            self._stats.end_answered(opened_s, begun_s, None, done_s, len(calls))
            for trace in traces:
                trace.end(Code.OK, begun_s, done_s, self._gate.now())
            self._release_all(len(calls))

    def _replies(
        self, calls: Sequence[BurstCall], outputs: Tensors, num_rows: int
    ) -> Sequence[Reply] | None:
        """Returns the reply to each request; None if they have to be encoded one by one."""
        try:
            return self._writer.write_all(self._answerer, outputs, num_rows, len(calls))
        except Exception:
            return None  # one by one it shows which request is at fault

    def _reply_all(self, calls: Sequence[BurstCall], replies: Sequence[Reply]) -> None:
        num = len(calls)
        self._model.leave_all(num)
        self._gate.leave_all(num)
        calls[0].reply_all(calls, replies)

    def _release_all(self, num: int) -> None:
        release = self._admission.handle.release
        for _ in range(num):
            release()

    def _end_traces(self, asked: Sequence[PlannedTask], done_s: float) -> None:
        for each in asked:
            if each.trace is not None:
                error = each.cancel.error
                code = Code.OK if error is None else error.code
                each.trace.end(code, each.begun_s, done_s, self._gate.now())

    def _count(self, asked: Sequence[PlannedTask], done_s: float) -> None:
        stats, first = self._stats, asked[0]
        first_s = first.begun_s
        others = [
            each
            for each in asked
            if each.begun_s != first_s or each.cancel.error is not None
        ]
        if not others:
            stats.end_answered(
                first.call.opened_s, first_s, first.cancel.begun_s, done_s, len(asked)
            )
            return
        for each in asked:
            cancel, begun_s = each.cancel, each.begun_s
            if cancel.error is not None:
                stats.end(cancel.error.code, begun_s)
            else:
                opened_s = each.call.opened_s
                stats.end_answered(opened_s, begun_s, cancel.begun_s, done_s)


def _is_large(call: Call, response: Reply) -> bool:
    """Tells whether copying request and response for a log takes long."""
    return not isinstance(response, bytes) or len(call.message) >= _LARGE_LOGGED_BYTES


def _rows_of(outputs: Tensors, index: int, num_rows: int) -> Tensors:
    """Returns the ``index``-th of equal parts."""
    start, stop = index * num_rows, (index + 1) * num_rows
    return {name: view.rows(start, stop) for name, view in outputs.items()}
