"""Classify, Regress and MultiInference: tf.Examples in, classes or values out.

All three turn the Examples into the inputs of a signature and run it; MultiInference
runs several signatures of one version over the same Examples. Requests that are not
small are taken apart off the serving loop, in two steps, because which tensors Examples
become is known only once the signature is found: read the request, find the version on
the loop, make the tensors.
(TensorFlow Serving: servables/tensorflow/{classifier,regressor,multi_inference}.cc.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tfs.codec.classification import (
    write_classification_response,
    write_classification_result,
)
from tfs.codec.example import (
    QUICK_EXAMPLE_BYTES,
    ExampleInput,
    read_example_request,
    tensors_of_examples,
)
from tfs.codec.model_spec import ModelSpec
from tfs.codec.multi_inference import (
    InferenceAnswer,
    InferenceTaskView,
    read_multi_inference_request,
    write_multi_inference_response,
)
from tfs.codec.regression import write_regression_response, write_regression_result
from tfs.core.call import Call, is_low_priority
from tfs.core.errors import (
    Code,
    InvalidArgument,
    ServingError,
    Unimplemented,
    forget_frames,
    serving_error,
)
from tfs.core.servable import InferenceTask, Outcome, Servable, Tensors
from tfs.core.servable_handle import ServableHandle
from tfs.core.signature import Method, Signature
from tfs.handlers.decode_pool import DecodePool
from tfs.handlers.lookup import ModelLookup
from tfs.handlers.request_gate import (
    CLASSIFY,
    MULTI_INFERENCE,
    REGRESS,
    ModelGate,
    RequestGate,
)
from tfs.handlers.request_stats import RequestStats

T = TypeVar("T")

_NOUN = {Method.CLASSIFY: "classification", Method.REGRESS: "regression"}
_ANSWERS = {
    Method.CLASSIFY: frozenset({"classes", "scores"}),
    Method.REGRESS: frozenset({"outputs"}),
}
_UNNAMED = "No signature was found with the name"
_MISSING = {
    CLASSIFY: _UNNAMED,
    REGRESS: _UNNAMED,
    MULTI_INFERENCE: "Requested signature not found in model graph",
}
_RPC = {Method.CLASSIFY: CLASSIFY, Method.REGRESS: REGRESS}


@dataclass(frozen=True, slots=True)
class _Question:
    """What a request of any of the three asks. Immutable.

    Attributes:
        model_spec: Which version answers.
        tasks: Which of its signatures, and the method each must have, as sent; they are
            looked at once there is a version.
        rows: The Examples.

    """

    model_spec: ModelSpec
    tasks: tuple[InferenceTaskView, ...]
    rows: ExampleInput

    @property
    def key(self) -> str:
        """The signature, "" if there are several."""
        return self.model_spec.signature_key if len(self.tasks) == 1 else ""


@dataclass(frozen=True, slots=True)
class _FoundTask:
    """A task that can be run. Immutable."""

    model_spec: ModelSpec
    method: Method
    signature: Signature


class _ExamplesHandler:
    """What the three have in common. Confined to the serving loop.

    Args:
        method: The RPC, for counters and logs.
        read: Takes a message apart; raises what is wrong with it.
        write: Makes the reply of every task's outputs.
        lookup: Finds the version.
        gate: Limits and counts; by default nothing is limited.
        decode_pool: Where slow messages are decoded; by default on the loop.
        check_method: Whether a signature's method must be the one asked for.

    """

    def __init__(
        self,
        method: str,
        read: Callable[[bytes | memoryview], _Question],
        write: Callable[[_Progress], bytes],
        lookup: ModelLookup,
        gate: RequestGate | None,
        decode_pool: DecodePool | None,
        check_method: bool,
    ) -> None:
        self.method = method
        self._check_method = check_method
        self.gate = gate or RequestGate()
        self.write = write
        self._read = read
        self._lookup = lookup
        self._decode_pool = decode_pool or DecodePool()

    def __call__(self, call: Call) -> None:
        """Starts the request; the call is finished when its outcome is known."""
        gate = self.gate
        if not gate.enter(call, self.method):
            return
        begun_s = gate.now()
        self._decode(
            call,
            functools.partial(self._read, call.message),
            functools.partial(self._find, call, begun_s),
            functools.partial(gate.refuse, method=self.method, begun_s=begun_s),
        )

    def _decode(
        self,
        call: Call,
        decode: Callable[[], T],
        done: Callable[[T], None],
        refuse: Callable[[Call, Exception], None],
    ) -> None:
        """Decodes where the message's size says, then calls one of the two."""

        def decoded(outcome: T | ServingError) -> None:
            if isinstance(outcome, ServingError):
                refuse(call, outcome)
            else:
                done(outcome)

        try:
            if len(call.message) > QUICK_EXAMPLE_BYTES:
                self._decode_pool.run(call, decode, decoded)
                return
            outcome = decode()
        except Exception as error:
            refuse(call, error)
            return
        done(outcome)

    def _find(self, call: Call, begun_s: float, question: _Question) -> None:
        """Pins the version and finds the signatures."""
        gate = self.gate
        handle: ServableHandle[Servable] | None = None
        stats: RequestStats | None = None
        try:
            spec = question.model_spec
            handle = self._lookup.acquire(
                spec.name, spec.version, spec.version_label, None, call
            )
            model = gate.model(handle.id.name)
            tasks = self._find_tasks(handle.servable, question.tasks)
            stats = model.stats_of(self.method, handle.id.version, question.key)
            stats.begin()
            model.enter()
        except Exception as error:
            if handle is not None:
                handle.release()
            gate.refuse(call, error, self.method, begun_s, stats)
            return
        progress = _Progress(self, call, question, handle, tasks, model, stats, begun_s)
        self._decode(call, progress.make_tasks, progress.submit, progress.refuse)

    def _find_tasks(
        self, servable: Servable, tasks: Sequence[InferenceTaskView]
    ) -> list[_FoundTask]:
        """Returns the tasks with their signatures: of one model, every one once.

        Raises:
            ServingError: The first thing wrong, in upstream's order.

        """
        found: list[_FoundTask] = []
        for task in tasks:
            spec = task.model_spec
            if spec is None or not spec.name:
                raise InvalidArgument("Found ModelSpec with an empty model name.")
            if found and spec.name != found[0].model_spec.name:
                raise InvalidArgument(
                    "All ModelSpecs in a MultiInferenceRequest must access the same "
                    "model name."
                )
            key = spec.signature_key
            if key in [each.model_spec.signature_key for each in found]:
                raise InvalidArgument(f"Duplicate evaluation of signature: {key}")
            signature = servable.signatures.get(key)
            if signature is None:
                raise InvalidArgument(f"{_MISSING[self.method]}: {key}")
            method = _method(task.method_name)
            self._check_signature(signature, method)
            found.append(_FoundTask(spec, method, signature))
        return found

    def _check_signature(self, signature: Signature, method: Method) -> None:
        """Returns if the signature can answer ``method``."""
        if signature.method is method:
            return
        if self._check_method or not signature.features:
            # Without features nothing says which input takes what of an Example.
            raise InvalidArgument(
                f"Expected {_NOUN[method]} signature method_name to be "
                f"{method.method_name}. Was: {signature.method.method_name}"
            )
        if not _ANSWERS[method] & signature.outputs.keys():
            wanted = " or ".join(f'"{name}"' for name in sorted(_ANSWERS[method]))
            raise InvalidArgument(
                f"Expected {_NOUN[method]} signature outputs to contain at least one of "
                f"{wanted}. Signature has: {', '.join(sorted(signature.outputs))}"
            )


class ExampleHandler(_ExamplesHandler):
    """Answers Classify or Regress. Confined to the serving loop."""

    def __init__(
        self,
        lookup: ModelLookup,
        method: Method,
        gate: RequestGate | None = None,
        decode_pool: DecodePool | None = None,
        *,
        check_method: bool = False,
    ) -> None:
        super().__init__(
            _RPC[method],
            functools.partial(_read_one, method=method),
            {Method.CLASSIFY: _classification, Method.REGRESS: _regression}[method],
            lookup,
            gate,
            decode_pool,
            check_method,
        )


class MultiInferenceHandler(_ExamplesHandler):
    """Answers MultiInference. Confined to the serving loop."""

    def __init__(
        self,
        lookup: ModelLookup,
        gate: RequestGate | None = None,
        decode_pool: DecodePool | None = None,
        *,
        check_method: bool = False,
    ) -> None:
        super().__init__(
            MULTI_INFERENCE,
            _read_several,
            _answers,
            lookup,
            gate,
            decode_pool,
            check_method,
        )


class _Progress:
    """A request whose version is pinned: runs its tasks, replies after the last.

    Owns the pin and the places until it has given them back, once. ``make_tasks`` may
    run on a decode thread, the tasks' ends on any.
    """

    def __init__(
        self,
        handler: _ExamplesHandler,
        call: Call,
        question: _Question,
        handle: ServableHandle[Servable],
        tasks: Sequence[_FoundTask],
        model: ModelGate,
        stats: RequestStats,
        begun_s: float,
    ) -> None:
        self.call = call
        self.question = question
        self.handle = handle
        self.tasks = tasks
        self._handler = handler
        self._model = model
        self._stats = stats
        self._begun_s = begun_s
        self._outcomes: list[Outcome | None] = [None] * len(tasks)
        # One number a task, 0 first: whoever pops 0 is the last and replies. Popping
        # is atomic under the GIL.
        self._waiting = list(range(len(tasks)))

    @property
    def num_rows(self) -> int:
        """How many Examples were sent."""
        return len(self.question.rows.examples)

    @property
    def outputs(self) -> Sequence[Tensors]:
        """What every task gave; only in ``write``."""
        return self._outcomes  # type: ignore[return-value]  # checked before

    def make_tasks(self) -> list[InferenceTask]:
        """Returns what to submit, one task a signature."""
        return [
            self._task(index, task.model_spec.signature_key, task.signature)
            for index, task in enumerate(self.tasks)
        ]

    def submit(self, tasks: Sequence[InferenceTask]) -> None:
        """Starts every task."""
        self._model.examples.add(self.num_rows)
        for task in tasks:
            self.handle.servable.submit(task)

    def refuse(self, call: Call, error: Exception) -> None:
        """Ends the request before anything was submitted."""
        self._model.leave()
        self.handle.release()
        handler = self._handler
        handler.gate.refuse(call, error, handler.method, self._begun_s, self._stats)

    def _task(self, index: int, key: str, signature: Signature) -> InferenceTask:
        rows = self.question.rows
        inputs = signature.with_defaults(tensors_of_examples(rows, signature))
        return InferenceTask(
            key,
            signature,
            inputs,
            functools.partial(self._done, index),
            num_rows=signature.check_inputs(inputs),
            deadline_s=self.call.deadline_s,
            cancel=self.call.cancel,
            is_low=is_low_priority(self.call.metadata),
        )

    def _done(self, index: int, outcome: Outcome) -> None:
        self._outcomes[index] = outcome
        if self._waiting.pop() == 0:
            self._finish()

    def _finish(self) -> None:
        call, handler, servable_id = self.call, self._handler, self.handle.id
        code = Code.OK
        self._model.leave()
        handler.gate.leave()
        try:
            for outcome in self._outcomes:
                if isinstance(outcome, ServingError):
                    code = outcome.code
                    call.fail(outcome)
                    return
            response = handler.write(self)
            for each in self._model.logs:
                each.log(
                    handler.method,
                    servable_id.name,
                    servable_id.version,
                    self.question.key,
                    call.message,
                    response,
                )
            call.reply(response)
        except Exception as error:
            failure = serving_error(error, f"{servable_id.slashed}: {handler.method}")
            forget_frames(failure)  # this one holds it, and the request
            code = failure.code
            call.fail(failure)
        finally:
            if call.cancel.error is not None:
                code = call.cancel.error.code
            self._stats.end(code, self._begun_s)
            self.handle.release()


def _read_one(message: bytes | memoryview, method: Method) -> _Question:
    request = read_example_request(message)
    spec = request.model_spec
    if spec is None:
        raise InvalidArgument("Missing ModelSpec")
    task = InferenceTaskView(spec, method.method_name)
    return _Question(spec, (task,), request.input)


def _read_several(message: bytes | memoryview) -> _Question:
    request = read_multi_inference_request(message)
    # The first task's decides, as in GetModelSpecFromRequest of multi_inference.cc.
    spec = request.tasks[0].model_spec if request.tasks else None
    if spec is None or not spec.name:
        raise InvalidArgument("ModelSpec has no name specified.")
    return _Question(spec, request.tasks, request.input)


def _method(name: str) -> Method:
    for method in (Method.CLASSIFY, Method.REGRESS):
        if name == method.method_name:
            return method
    raise Unimplemented(f"Unsupported signature method_name: {name}")


def _classification(progress: _Progress) -> bytes:
    servable_id = progress.handle.id
    return write_classification_response(
        servable_id.name,
        servable_id.version,
        progress.question.key,
        progress.outputs[0],
        progress.num_rows,
        progress.tasks[0].signature.labels,
    )


def _regression(progress: _Progress) -> bytes:
    servable_id = progress.handle.id
    return write_regression_response(
        servable_id.name,
        servable_id.version,
        progress.question.key,
        progress.outputs[0],
        progress.num_rows,
    )


def _answers(progress: _Progress) -> bytes:
    answers = []
    for task, outputs in zip(progress.tasks, progress.outputs, strict=True):
        spec, method = task.model_spec, task.method
        if method is Method.CLASSIFY:
            result = write_classification_result(
                outputs, progress.num_rows, task.signature.labels
            )
        else:
            result = write_regression_result(outputs, progress.num_rows)
        answered = ModelSpec(
            spec.name, progress.handle.id.version, None, spec.signature_key
        )
        answers.append(InferenceAnswer(answered, method, result))
    return write_multi_inference_response(answers)
