"""PredictionService.Predict: named tensors in, named tensors out."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from tfs.codec.predict import (
    PredictRequestView,
    read_if_quick,
    read_predict_request,
    write_predict_reply,
)
from tfs.core.call import Call, is_low_priority
from tfs.core.errors import Code, InvalidArgument, ServingError, serving_error
from tfs.core.servable import InferenceTask, Outcome, Servable
from tfs.core.servable_handle import ServableHandle
from tfs.core.signature import DEFAULT_SIGNATURE
from tfs.core.tensor_view import TensorView
from tfs.handlers.decode_pool import DecodePool
from tfs.handlers.lookup import ModelLookup, find_signature
from tfs.handlers.request_gate import PREDICT, ModelGate, RequestGate, RequestLog
from tfs.handlers.request_stats import RequestStats


class PredictHandler:
    """Answers Predict. Confined to the serving loop; replies come from any thread.

    The order is enter, decode, resolve, pin, check, submit; place and pin are given
    back when the servable is done with the task (TensorFlow Serving:
    servables/tensorflow/predict_util.cc).

    Args:
        lookup: Finds the version.
        gate: Limits and counts; by default nothing is limited.
        decode_pool: Where slow messages are decoded; by default on the loop.
        as_tensor_content: Whether outputs travel as raw elements.

    """

    __slots__ = ("_as_tensor_content", "_decode_pool", "_gate", "_lookup")

    def __init__(
        self,
        lookup: ModelLookup,
        gate: RequestGate | None = None,
        decode_pool: DecodePool | None = None,
        *,
        as_tensor_content: bool = False,
    ) -> None:
        self._lookup = lookup
        self._gate = gate or RequestGate()
        self._decode_pool = decode_pool or DecodePool()
        self._as_tensor_content = as_tensor_content

    def __call__(self, call: Call) -> None:
        """Starts the request; the call is finished when its outcome is known."""
        gate = self._gate
        if not gate.enter(call, PREDICT):
            return
        begun_s = gate.now()
        try:
            request = read_if_quick(call.message)
            if request is None:
                self._decode_pool.run(
                    call,
                    functools.partial(read_predict_request, call.message),
                    functools.partial(self._decoded, call, begun_s),
                )
                return
        except Exception as error:
            gate.refuse(call, error, PREDICT, begun_s)
            return
        self._start(call, request, begun_s)

    def _decoded(
        self, call: Call, begun_s: float, outcome: PredictRequestView | ServingError
    ) -> None:
        if isinstance(outcome, ServingError):
            self._gate.refuse(call, outcome, PREDICT, begun_s)
        else:
            self._start(call, outcome, begun_s)

    def _start(self, call: Call, request: PredictRequestView, begun_s: float) -> None:
        handle: ServableHandle[Servable] | None = None
        stats: RequestStats | None = None
        gate = self._gate
        try:
            spec = request.model_spec
            if spec is None:
                raise InvalidArgument("Missing ModelSpec")
            handle = self._lookup.acquire(
                spec.name, spec.version, spec.version_label, request.client_id, call
            )
            servable = handle.servable
            servable_id = handle.id
            model = gate.model(servable_id.name)
            name = spec.signature_name or DEFAULT_SIGNATURE
            signature = find_signature(servable, name)
            stats = model.stats_of(PREDICT, servable_id.version, name)
            stats.begin()
            inputs: Mapping[str, TensorView] = request.inputs
            if signature.defaults:
                inputs = signature.with_defaults(inputs)
            num_rows = signature.check_inputs(inputs)
            output_filter = request.output_filter
            if output_filter:
                signature.check_output_filter(output_filter)
            logs = model.logs
            if logs:  # they take the message as it came, once it is answered
                inputs = {key: view.read_only() for key, view in inputs.items()}
            model.enter()  # the last that can fail: who entered is sure to leave
        except Exception as error:
            if handle is not None:
                handle.release()
            gate.refuse(call, error, PREDICT, begun_s, stats)
            return
        servable.submit(
            InferenceTask(
                name,
                signature,
                inputs,
                _Reply(
                    call,
                    handle,
                    name,
                    output_filter,
                    self._as_tensor_content,
                    gate,
                    model,
                    logs,
                    stats,
                    begun_s,
                ),
                num_rows,
                output_filter,
                call.deadline_s,
                call.cancel,
                is_low_priority(call.metadata),
            )
        )


class _Reply:
    """Encodes the outcome, finishes the call, gives everything back. Runs once."""

    __slots__ = (
        "_as_tensor_content",
        "_begun_s",
        "_call",
        "_gate",
        "_handle",
        "_logs",
        "_model",
        "_name",
        "_output_filter",
        "_stats",
    )

    def __init__(
        self,
        call: Call,
        handle: ServableHandle[Servable],
        name: str,
        output_filter: tuple[str, ...],
        as_tensor_content: bool,
        gate: RequestGate,
        model: ModelGate,
        logs: tuple[RequestLog, ...],
        stats: RequestStats,
        begun_s: float,
    ) -> None:
        self._call = call
        self._handle = handle
        self._name = name
        self._output_filter = output_filter
        self._as_tensor_content = as_tensor_content
        self._gate = gate
        self._model = model
        self._logs = logs
        self._stats = stats
        self._begun_s = begun_s

    def __call__(self, outcome: Outcome) -> None:
        call, handle = self._call, self._handle
        code = Code.OK
        # Before the reply: a client that keeps as many in flight as it may sends the
        # next one as soon as it has this one's.
        self._model.leave()
        self._gate.leave()
        try:
            if isinstance(outcome, ServingError):
                code = outcome.code
                call.fail(outcome)
                return
            if self._output_filter:
                outcome = {name: outcome[name] for name in self._output_filter}
            servable_id = handle.id
            response = write_predict_reply(
                servable_id.name,
                servable_id.version,
                self._name,
                outcome,
                as_tensor_content=self._as_tensor_content,
            )
            if self._logs:
                if not isinstance(response, bytes):
                    response = b"".join(response)
                for each in self._logs:
                    each.log(
                        PREDICT,
                        servable_id.name,
                        servable_id.version,
                        self._name,
                        call.message,
                        response,
                    )
            if isinstance(response, bytes):
                call.reply(response)
            else:
                call.reply_parts(response)
        except Exception as error:
            failure = serving_error(error, f"{handle.id.slashed}: Predict")
            code = failure.code
            call.fail(failure)
        finally:
            if call.cancel.error is not None:
                code = call.cancel.error.code
            self._stats.end(code, self._begun_s)
            handle.release()
