"""PredictionService.Predict: named tensors in, named tensors out."""

from __future__ import annotations

from collections.abc import Mapping

from tfs.codec.predict import read_predict_request, write_predict_response
from tfs.core.call import Call
from tfs.core.errors import InvalidArgument, ServingError, serving_error
from tfs.core.servable import InferenceTask, Outcome, Servable
from tfs.core.servable_handle import ServableHandle
from tfs.core.signature import DEFAULT_SIGNATURE
from tfs.core.tensor_view import TensorView
from tfs.handlers.lookup import ModelLookup, find_signature


class PredictHandler:
    """Answers Predict. Confined to the serving loop; replies come from any thread.

    The order is decode, resolve, pin, check, submit; the pin is released when the
    servable is done with the task (TensorFlow Serving:
    servables/tensorflow/predict_util.cc).
    """

    __slots__ = ("_as_tensor_content", "_lookup")

    def __init__(self, lookup: ModelLookup, *, as_tensor_content: bool = False) -> None:
        self._lookup = lookup
        self._as_tensor_content = as_tensor_content

    def __call__(self, call: Call) -> None:
        """Starts the request; the call is finished when its outcome is known."""
        try:
            request = read_predict_request(call.message)
            spec = request.model_spec
            if spec is None:
                raise InvalidArgument("Missing ModelSpec")
            handle = self._lookup.acquire(
                spec.name, spec.version, spec.version_label, request.client_id
            )
        except ServingError as error:
            call.fail(error)
            return
        try:
            servable = handle.servable
            name = spec.signature_name or DEFAULT_SIGNATURE
            signature = find_signature(servable, name)
            inputs: Mapping[str, TensorView] = request.inputs
            if signature.defaults:
                inputs = signature.with_defaults(inputs)
            num_rows = signature.check_inputs(inputs)
            output_filter = request.output_filter
            if output_filter:
                signature.check_output_filter(output_filter)
        except ServingError as error:
            handle.release()
            call.fail(error)
            return
        servable.submit(
            InferenceTask(
                name,
                signature,
                inputs,
                _Reply(call, handle, name, output_filter, self._as_tensor_content),
                num_rows=num_rows,
                output_filter=output_filter,
                deadline_s=call.deadline_s,
                cancel=call.cancel,
            )
        )


class _Reply:
    """Encodes the outcome, finishes the call, releases the pin. Runs once."""

    __slots__ = ("_as_tensor_content", "_call", "_handle", "_name", "_output_filter")

    def __init__(
        self,
        call: Call,
        handle: ServableHandle[Servable],
        name: str,
        output_filter: tuple[str, ...],
        as_tensor_content: bool,
    ) -> None:
        self._call = call
        self._handle = handle
        self._name = name
        self._output_filter = output_filter
        self._as_tensor_content = as_tensor_content

    def __call__(self, outcome: Outcome) -> None:
        handle = self._handle
        try:
            if isinstance(outcome, ServingError):
                self._call.fail(outcome)
                return
            if self._output_filter:
                outcome = {name: outcome[name] for name in self._output_filter}
            self._call.reply(
                write_predict_response(
                    handle.id.name,
                    handle.id.version,
                    self._name,
                    outcome,
                    as_tensor_content=self._as_tensor_content,
                )
            )
        except Exception as error:
            self._call.fail(serving_error(error, f"{handle.id.slashed}: Predict"))
        finally:
            handle.release()
