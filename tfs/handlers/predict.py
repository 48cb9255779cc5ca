"""PredictionService.Predict: named tensors in, named tensors out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

from tfs.codec.decode_options import DEFAULT_OPTIONS, DecodeOptions
from tfs.codec.model_spec import ModelSpec
from tfs.codec.request_reader import RequestView
from tfs.core.call import (
    TRACING,
    BurstCall,
    Call,
    Metadata,
    begin_trace,
    is_low_priority,
)
from tfs.core.dtype import DType
from tfs.core.errors import InvalidArgument, ServingError
from tfs.core.servable import InferenceTask, Servable
from tfs.core.servable_handle import ServableHandle
from tfs.core.signature import DEFAULT_SIGNATURE, Signature
from tfs.core.tensor_view import Buffer, TensorView
from tfs.handlers.decode_pool import UNASKED_BYTES, DecodePool
from tfs.handlers.limits.admission import Admission
from tfs.handlers.limits.answered_request import PREDICT
from tfs.handlers.limits.request_gate import RequestGate
from tfs.handlers.limits.request_stats import RequestStats
from tfs.handlers.model_lookup import ModelLookup, NotResident, find_signature
from tfs.handlers.request_format import PredictFormat, ReplyWriter, RequestFormat
from tfs.handlers.request_plan import PredictAnswers, RequestPlan

Asked: TypeAlias = tuple[Mapping[str, TensorView], tuple[str, ...]]
"""A request's inputs by name, and the outputs that it wants; none stands for all."""

ReadInputs: TypeAlias = Callable[[Signature], Asked]
"""Returns what a request asks of a signature."""

FindSignature: TypeAlias = Callable[[Servable, str], Signature]

_MAX_PLANS: Final = 4096


class Alike(Protocol):
    """What requests have in common that differ only in their elements. Immutable.

    Equal only to itself.
    """

    @property
    def model_spec(self) -> ModelSpec:
        """The model that they ask for."""
        ...

    @property
    def inputs(self) -> Sequence[tuple[str, DType, tuple[int, ...]]]:
        """Name, dtype and shape of each tensor. No strings."""
        ...


class PredictHandler:
    """Answers requests for tensors. Confined to the serving loop; replies come from any thread.

    There are three ways in: one request (``__call__``), requests that came together
    (:meth:`take_burst`), and one that was decoded elsewhere (:meth:`start`). The order
    is always: enter, decode, resolve, pin, check, submit. What was entered and the pin
    are given back when the servable is done with the task. (TensorFlow Serving:
    servables/tensorflow/predict_util.cc.)

    Args:
        lookup: Finds the version.
        gate: Limits and counts; by default nothing is limited.
        decode_pool: Where slow messages are decoded, and long answers written; by default
            on the loop.
        form: The form in which they come and are answered; by default Predict's.
        decoding: How much memory requests may take.

    """

    def __init__(
        self,
        lookup: ModelLookup,
        gate: RequestGate | None = None,
        decode_pool: DecodePool | None = None,
        *,
        form: RequestFormat | None = None,
        decoding: DecodeOptions = DEFAULT_OPTIONS,
    ) -> None:
        self._lookup = lookup
        self._decoding = decoding
        self._gate = gate or RequestGate()
        self._decode_pool = decode_pool or DecodePool()
        self._form = form or PredictFormat()
        self._plans: dict[Alike, RequestPlan] = {}
        # The last one seen; a client's calls share one object.
        self._ordinary: Metadata = ()

    # -- one request -------------------------------------------------------------------

    def __call__(self, call: Call) -> None:
        """Starts the request; the call is finished when its outcome is known."""
        begin_trace(call, PREDICT)
        self._take(call)

    def _take(self, call: Call) -> None:
        gate = self._gate
        if not gate.enter(call, PREDICT):
            return
        begun_s = gate.now()
        try:
            request = self._form.reader.read_if_quick(call.message, self._decoding)
            if request is None or request.filled_bytes > UNASKED_BYTES:
                self._decode_pool.run(
                    call,
                    functools.partial(
                        self._form.reader.read, call.message, self._decoding
                    ),
                    functools.partial(self._decoded, call, begun_s),
                    gate.leave,
                )
                return
        except Exception as error:
            gate.refuse(call, error, PREDICT, begun_s)
            return
        self._decoded(call, begun_s, request)

    def _decoded(
        self, call: Call, begun_s: float, request: RequestView | ServingError
    ) -> None:
        if isinstance(request, ServingError):
            self._gate.refuse(call, request, PREDICT, begun_s)
            return
        asked: Asked = request.inputs, request.output_filter
        form = self._form
        self._start(
            form.call_of(call, request),
            begun_s,
            request.model_spec,
            lambda _: asked,
            form.replies_to(request),
            request.client_id,
        )

    # -- a request that was decoded elsewhere ------------------------------------------

    def start(
        self,
        call: Call,
        spec: ModelSpec | None,
        read_inputs: ReadInputs,
        writer: ReplyWriter,
        client_id: bytes | None = None,
        *,
        find: FindSignature = find_signature,
    ) -> None:
        """Starts a request that was not sent as a PredictRequest.

        Args:
            call: Finished when the outcome is known.
            spec: Which version answers.
            read_inputs: Returns the inputs, and the names of the outputs that are wanted
                (none for all); called at most once, on the loop, with the signature.
                What it raises fails the call.
            writer: Encodes the outputs.
            client_id: What the caller calls itself.
            find: Returns the signature of a name; what it raises fails the call.

        """
        begin_trace(call, PREDICT)
        if self._gate.enter(call, PREDICT):
            begun_s = self._gate.now()
            self._start(call, begun_s, spec, read_inputs, writer, client_id, find)

    def _start(
        self,
        call: Call,
        begun_s: float,
        spec: ModelSpec | None,
        read_inputs: ReadInputs,
        writer: ReplyWriter,
        client_id: bytes | None,
        find: FindSignature = find_signature,
    ) -> None:
        handle: ServableHandle[Servable] | None = None
        stats: RequestStats | None = None
        gate = self._gate
        try:
            if spec is None:
                raise InvalidArgument("Missing ModelSpec")
            handle = self._lookup.acquire(
                spec.name, spec.version, spec.version_label, client_id, call
            )
            servable = handle.servable
            servable_id = handle.id
            model = gate.model(servable_id.name)
            name = spec.signature_name or DEFAULT_SIGNATURE
            signature = find(servable, name)
            stats = model.stats_of(PREDICT, servable_id.version, name, signature)
            if stats.answer_bytes and not call.take_room(
                stats.answer_bytes, is_all=True
            ):
                handle.release()
                gate.leave()  # it is handed over again when there is room
                return
            stats.begin()
            inputs, output_filter = read_inputs(signature)
            if signature.defaults:
                inputs = signature.with_defaults(inputs)
            num_rows = signature.check_inputs(inputs)
            if output_filter:
                signature.check_output_filter(output_filter)
            logs = model.logs
            if logs:  # logs take the message as it came, once it is answered
                inputs = {key: view.read_only() for key, view in inputs.items()}
            asked = (spec, inputs, output_filter) if logs else None
            model.enter()  # nothing after this can fail, so leave() follows
        except NotResident as absent:
            absent.then(
                call,
                lambda: self._start(
                    call, begun_s, spec, read_inputs, writer, client_id, find
                ),
                lambda error: gate.refuse(call, error, PREDICT, begun_s),
            )
            return
        except Exception as error:
            if handle is not None:
                handle.release()
            gate.refuse(call, error, PREDICT, begun_s, stats)
            return
        answers = PredictAnswers(
            Admission(handle, gate, model, stats, PREDICT, name, logs),
            self._decode_pool,
            writer,
        )
        answers.asked = asked
        task = InferenceTask(
            name,
            signature,
            inputs,
            functools.partial(answers.end, call, begun_s, output_filter),
            num_rows,
            output_filter,
            call.deadline_s,
            call.cancel,
            is_low_priority(call.metadata),
        )
        if task.cancel.trace is not None:
            task.trace = task.cancel.trace
            task.trace.name(servable_id, name)
        servable.submit(task)

    # -- requests that come together ---------------------------------------------------

    def take_burst(self, calls: Sequence[BurstCall]) -> None:
        """Starts requests that arrived together, as ``__call__`` would one by one."""
        tracer = TRACING.tracer
        has_traced = tracer is not None and tracer.begin_some(calls, PREDICT)
        messages = [call.message for call in calls]
        index = 0
        while index < len(calls):
            stop = index + 1
            alike = self._form.reader.read_alike(messages, index)
            if alike is None:
                self._take(calls[index])
            else:
                template, elements = alike
                stop = index + len(elements)
                run = calls[index:stop]
                # This concerns all requests that are alike. Trying again with each of
                # them as the first would take quadratic time, just when there is too
                # much to do.
                if self._any_gives_way(run) or not self.start_alike(
                    template,
                    run,
                    elements,
                    self._form.replies,
                    is_all=len(run) == len(calls),
                    has_traced=has_traced,
                ):
                    for call in run:
                        self._take(call)
            index = stop

    def _any_gives_way(self, calls: Sequence[BurstCall]) -> bool:
        """Tells whether one has low priority, for which there are no plans."""
        for call in calls:
            metadata = call.metadata
            if metadata is not self._ordinary:
                if is_low_priority(metadata):
                    return True
                self._ordinary = metadata
        return False

    def start_alike(
        self,
        template: Alike,
        calls: Sequence[BurstCall],
        elements: Sequence[tuple[Buffer, ...]],
        writer: ReplyWriter,
        *,
        is_all: bool,
        has_traced: bool,
    ) -> bool:
        """Starts requests of one template by their plan, none of low priority.

        Returns False, with nothing done, if they must be started one by one, because
        there is no plan for them, no room for all of them, or something is wrong with
        one of them.

        Args:
            template: What they have in common.
            calls: The calls of the requests.
            elements: The elements of each request.
            writer: Encodes the outputs; always the same for a template.
            is_all: Whether no other requests arrived with them, so that nothing is
                gained by queueing them.
            has_traced: Whether one of them may be traced.

        """
        gate = self._gate
        num = len(calls)
        if not gate.enter_all(num):
            return False
        begun_s = gate.now()
        spec = template.model_spec
        handle: ServableHandle[Servable] | None = None
        plan: RequestPlan | None = None
        try:
            handle = self._lookup.acquire_shared(
                spec.name, spec.version, spec.version_label, num
            )
            if handle is not None:
                plan = self._plans.get(template)
                if plan is None or not plan.answers.are_for(handle):
                    plan = self._new_plan(template, handle, writer)
                if plan is not None and not plan.answers.enter_all(num):
                    plan = None
        except Exception:
            plan = None  # one by one, each caller is told the fault
        if plan is None or handle is None:
            if handle is not None:
                for _ in calls:
                    handle.release()
            gate.leave_all(num)
            return False
        servable = handle.servable
        traces = plan.answers.traces_of(calls) if has_traced else ()
        if is_all and not any(
            call.is_finished
            or (call.deadline_s is not None and call.deadline_s <= begun_s)
            for call in calls
        ):
            # Apart from the cost, the effect is the same as that of queueing them.
            outcome = plan.compute_now(servable, elements, traces, begun_s)
            if outcome is not None:
                plan.answers.end_now(calls, begun_s, outcome, plan.num_rows, traces)
                return True
        servable.submit_all(plan.tasks(calls, elements, begun_s))
        return True

    def _new_plan(
        self,
        template: Alike,
        handle: ServableHandle[Servable],
        writer: ReplyWriter,
    ) -> RequestPlan | None:
        """Makes a plan for a version and keeps it.

        Returns None for what plans do not cover: defaults, which stand for every row,
        logs, and long answers, each of which needs room.

        Raises:
            ServingError: The version does not take such requests.

        """
        model = self._gate.model(handle.id.name)
        if model.logs:
            return None
        name = template.model_spec.signature_name or DEFAULT_SIGNATURE
        signature = find_signature(handle.servable, name)
        if signature.defaults:
            return None
        if len(self._plans) >= _MAX_PLANS:
            self._plans.clear()
        stats = model.stats_of(PREDICT, handle.id.version, name, signature)
        if stats.answer_bytes:
            return None
        admission = Admission(handle, self._gate, model, stats, PREDICT, name)
        answers = PredictAnswers(admission, self._decode_pool, writer)
        plan = RequestPlan(template.inputs, name, signature, answers)
        self._plans[template] = plan
        return plan
