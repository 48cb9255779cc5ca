"""Classify, Regress and MultiInference: tf.Examples in, classes or values out.

All three turn the Examples into the inputs of a signature and run it; MultiInference
runs several signatures of one version over the same Examples.
(TensorFlow Serving: servables/tensorflow/{classifier,regressor,multi_inference}.cc.)
"""

from __future__ import annotations

from collections.abc import Callable

from tfs.codec.classification import (
    write_classification_response,
    write_classification_result,
)
from tfs.codec.example import ExampleInput, read_example_request, tensors_of_examples
from tfs.codec.model_spec import ModelSpec
from tfs.codec.multi_inference import (
    InferenceAnswer,
    InferenceTaskView,
    read_multi_inference_request,
    write_multi_inference_response,
)
from tfs.codec.regression import write_regression_response, write_regression_result
from tfs.core.call import Call
from tfs.core.errors import (
    FailedPrecondition,
    InvalidArgument,
    ServingError,
    Unimplemented,
    serving_error,
)
from tfs.core.servable import InferenceTask, Outcome, Servable, Tensors
from tfs.core.servable_handle import ServableHandle
from tfs.core.signature import Method, Signature
from tfs.handlers.lookup import ModelLookup

Encode = Callable[[ServableHandle[Servable], ModelSpec, Signature, Tensors, int], bytes]
"""Makes the reply of a version's outputs for so many Examples."""

_NOUN = {Method.CLASSIFY: "classification", Method.REGRESS: "regression"}


class ExampleHandler:
    """Answers Classify or Regress. Confined to the serving loop.

    Args:
        lookup: Finds the version.
        method: Which of the two.

    """

    def __init__(self, lookup: ModelLookup, method: Method) -> None:
        self._lookup = lookup
        self._method = method
        self._encode = {
            Method.CLASSIFY: _classification,
            Method.REGRESS: _regression,
        }[method]

    def __call__(self, call: Call) -> None:
        """Starts the request; the call is finished when its outcome is known."""
        try:
            request = read_example_request(call.message)
            spec = _required(request.model_spec)
            handle = _acquire(self._lookup, spec)
        except ServingError as error:
            call.fail(error)
            return

        def done(outcome: Outcome) -> None:
            try:
                if isinstance(outcome, ServingError):
                    call.fail(outcome)
                else:
                    num_rows = len(request.input.examples)
                    call.reply(self._encode(handle, spec, signature, outcome, num_rows))
            except Exception as error:
                call.fail(serving_error(error, handle.id.slashed))
            finally:
                handle.release()

        try:
            signature = _find(handle.servable, spec, self._method)
            task = _task(spec, signature, request.input, call, done)
        except ServingError as error:
            handle.release()
            call.fail(error)
            return
        handle.servable.submit(task)


class MultiInferenceHandler:
    """Answers MultiInference. Confined to the serving loop."""

    def __init__(self, lookup: ModelLookup) -> None:
        self._lookup = lookup

    def __call__(self, call: Call) -> None:
        """Starts every task; the call is finished when the last outcome is known."""
        try:
            request = read_multi_inference_request(call.message)
            specs = _check_tasks(request.tasks)
            handle = _acquire(self._lookup, specs[0])
        except ServingError as error:
            call.fail(error)
            return
        try:
            gathered = _Gathered(call, handle, len(request.input.examples))
            tasks = []
            for index, (view, spec) in enumerate(
                zip(request.tasks, specs, strict=True)
            ):
                signature = _find(handle.servable, spec, _method(view))
                gathered.add(spec, signature)
                done = gathered.slot(index)
                tasks.append(_task(spec, signature, request.input, call, done))
        except ServingError as error:
            handle.release()
            call.fail(error)
            return
        for task in tasks:
            handle.servable.submit(task)


class _Gathered:
    """Waits for all tasks of a MultiInference. Slots run on any thread."""

    def __init__(
        self, call: Call, handle: ServableHandle[Servable], num_rows: int
    ) -> None:
        self._call = call
        self._handle = handle
        self._num_rows = num_rows
        self._parts: list[tuple[ModelSpec, Signature]] = []
        self._outcomes: list[Outcome | None] = []
        # One number a task, 0 first: whoever pops 0 is the last and replies. Popping
        # is atomic under the GIL.
        self._waiting: list[int] = []

    def add(self, spec: ModelSpec, signature: Signature) -> None:
        """Notes one more task; all are added before any is submitted."""
        self._parts.append((spec, signature))
        self._outcomes.append(None)
        self._waiting.append(len(self._waiting))

    def slot(self, index: int) -> Callable[[Outcome], None]:
        """Returns the ``on_done`` of one task."""

        def done(outcome: Outcome) -> None:
            self._outcomes[index] = outcome
            if self._waiting.pop() == 0:
                self._finish()

        return done

    def _finish(self) -> None:
        try:
            answers = []
            for (spec, signature), outcome in zip(
                self._parts, self._outcomes, strict=True
            ):
                if isinstance(outcome, ServingError):
                    self._call.fail(outcome)
                    return
                assert outcome is not None  # the last slot ran
                answers.append(self._answer(spec, signature, outcome))
            self._call.reply(write_multi_inference_response(answers))
        except Exception as error:
            self._call.fail(serving_error(error, self._handle.id.slashed))
        finally:
            self._handle.release()

    def _answer(
        self, spec: ModelSpec, signature: Signature, outputs: Tensors
    ) -> InferenceAnswer:
        if signature.method is Method.CLASSIFY:
            result = write_classification_result(
                outputs, self._num_rows, signature.labels
            )
        else:
            result = write_regression_result(outputs, self._num_rows)
        version = self._handle.id.version
        answered = ModelSpec(spec.name, version, None, spec.signature_key)
        return InferenceAnswer(answered, signature.method, result)


def _check_tasks(tasks: tuple[InferenceTaskView, ...]) -> list[ModelSpec]:
    """Returns the tasks' specs: one model, every signature once."""
    if not tasks:
        raise InvalidArgument("MultiInferenceRequest has no tasks")
    specs: list[ModelSpec] = []
    for task in tasks:
        spec = task.model_spec
        if spec is None or not spec.name:
            raise InvalidArgument("Found ModelSpec with an empty model name.")
        if specs and spec.name != specs[0].name:
            raise InvalidArgument(
                "All ModelSpecs in a MultiInferenceRequest must access the same model "
                "name."
            )
        if spec.signature_key in [each.signature_key for each in specs]:
            raise InvalidArgument(
                f"Duplicate evaluation of signature: {spec.signature_key}"
            )
        specs.append(spec)
    return specs


def _method(task: InferenceTaskView) -> Method:
    for method in (Method.CLASSIFY, Method.REGRESS):
        if task.method_name == method.method_name:
            return method
    raise Unimplemented(f"Unsupported signature method_name: {task.method_name}")


def _required(spec: ModelSpec | None) -> ModelSpec:
    if spec is None:
        raise InvalidArgument("Missing ModelSpec")
    return spec


def _acquire(lookup: ModelLookup, spec: ModelSpec) -> ServableHandle[Servable]:
    return lookup.acquire(spec.name, spec.version, spec.version_label)


def _find(servable: Servable, spec: ModelSpec, method: Method) -> Signature:
    """Returns the signature the spec names, if it is for ``method``."""
    signature = servable.signatures.get(spec.signature_key)
    if signature is None:
        raise InvalidArgument(
            f"No signature was found with the name: {spec.signature_key}"
        )
    if signature.method is not method:
        raise FailedPrecondition(
            f"Expected {_NOUN[method]} signature method_name to be "
            f"{method.method_name}. Was: {signature.method.method_name}"
        )
    return signature


def _task(
    spec: ModelSpec,
    signature: Signature,
    rows: ExampleInput,
    call: Call,
    done: Callable[[Outcome], None],
) -> InferenceTask:
    inputs = signature.with_defaults(tensors_of_examples(rows, signature))
    num_rows = signature.check_inputs(inputs)
    return InferenceTask(
        spec.signature_key,
        signature,
        inputs,
        done,
        num_rows=num_rows,
        deadline_s=call.deadline_s,
        cancel=call.cancel,
    )


def _classification(
    handle: ServableHandle[Servable],
    spec: ModelSpec,
    signature: Signature,
    outputs: Tensors,
    num_rows: int,
) -> bytes:
    return write_classification_response(
        handle.id.name,
        handle.id.version,
        spec.signature_key,
        outputs,
        num_rows,
        signature.labels,
    )


def _regression(
    handle: ServableHandle[Servable],
    spec: ModelSpec,
    signature: Signature,
    outputs: Tensors,
    num_rows: int,
) -> bytes:
    return write_regression_response(
        handle.id.name, handle.id.version, spec.signature_key, outputs, num_rows
    )
