"""What Classify, Regress and MultiInference ask, and how each is answered."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tfs.codec.example import takes_examples
from tfs.codec.example_input import ExampleInput, read_example_request
from tfs.codec.inference_results import (
    InferenceAnswer,
    InferenceTaskView,
    read_multi_inference_request,
    write_classification_response,
    write_classification_result,
    write_multi_inference_response,
    write_regression_response,
    write_regression_result,
)
from tfs.codec.model_spec import ModelSpec
from tfs.core.errors import InvalidArgument, Unimplemented
from tfs.core.servable import Tensors
from tfs.core.servable_id import ServableId
from tfs.core.signature import Method, Signature
from tfs.handlers.limits import answered_request

_NOUN: Final = {Method.CLASSIFY: "classification", Method.REGRESS: "regression"}
_ANSWERS: Final = {
    Method.CLASSIFY: frozenset({"classes", "scores"}),
    Method.REGRESS: frozenset({"outputs"}),
}
_NO_ANSWER: Final = {
    Method.CLASSIFY: "Expected classification signature outputs to contain at least one "
    'of "classes" or "scores". Signature was',
    Method.REGRESS: "No regression outputs found in SignatureDef",
}
"""Upstream's words."""


@dataclass(frozen=True, slots=True)
class ExampleQuestion:
    """What a Classify, Regress or MultiInference request asks. Immutable.

    Attributes:
        model_spec: Which version answers.
        tasks: Its signatures, and the method that each must have, as they were sent.
            They are checked once the version is known.
        rows: The Examples.

    """

    model_spec: ModelSpec
    tasks: tuple[InferenceTaskView, ...]
    rows: ExampleInput

    @property
    def key(self) -> str:
        """The signature's key; "" if there are several signatures."""
        return self.model_spec.signature_key if len(self.tasks) == 1 else ""

    @property
    def num_rows(self) -> int:
        """How many Examples were sent."""
        return len(self.rows.examples)


@dataclass(frozen=True, slots=True)
class FoundTask:
    """A task that can be run. Immutable."""

    model_spec: ModelSpec
    method: Method
    signature: Signature


def find_tasks(
    signatures: Mapping[str, Signature],
    tasks: Sequence[InferenceTaskView],
    missing: str,
    *,
    check_method: bool,
) -> list[FoundTask]:
    """Returns the tasks with their signatures; all of one model, and none repeated.

    Args:
        signatures: The version's, by key.
        tasks: The tasks in the order in which they were sent.
        missing: The message for a missing signature, up to its key.
        check_method: Whether a signature's method must be the one asked for.

    Raises:
        ServingError: The first thing wrong, in upstream's order.

    """
    found: list[FoundTask] = []
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
        signature = signatures.get(key)
        if signature is None:
            raise InvalidArgument(f"{missing}: {key}")
        method = _method(task.method_name)
        _check_signature(signature, method, check_method=check_method)
        found.append(FoundTask(spec, method, signature))
    return found


def _check_signature(
    signature: Signature, method: Method, *, check_method: bool
) -> None:
    """Returns normally if the signature can answer ``method``."""
    if signature.method is method:
        return
    if check_method or not takes_examples(signature):
        raise InvalidArgument(
            f"Expected {_NOUN[method]} signature method_name to be "
            f"{method.method_name}. Was: {signature.method.method_name}"
        )
    if not _ANSWERS[method] & signature.outputs.keys():
        raise InvalidArgument(f"{_NO_ANSWER[method]}: {sorted(signature.outputs)}")


def _method(name: str) -> Method:
    for method in (Method.CLASSIFY, Method.REGRESS):
        if name == method.method_name:
            return method
    raise Unimplemented(f"Unsupported signature method_name: {name}")


Write: TypeAlias = Callable[
    [ServableId, ExampleQuestion, Sequence[FoundTask], Sequence[Tensors]], bytes
]
"""Makes the reply from the version that answered, the question, and the outputs of
every task."""


@dataclass(frozen=True, slots=True)
class ExampleRpc:
    """One of the three. Immutable.

    Attributes:
        name: The RPC's name in counters and logs.
        read: Takes a message apart; raises what is wrong with it.
        write: Makes the reply.
        missing: The message for a missing signature, up to its key.

    """

    name: str
    read: Callable[[bytes | memoryview], ExampleQuestion]
    write: Write
    missing: str = "No signature was found with the name"


def _read_one(message: bytes | memoryview, method: Method) -> ExampleQuestion:
    request = read_example_request(message)
    spec = request.model_spec
    if spec is None:
        raise InvalidArgument("Missing ModelSpec")
    task = InferenceTaskView(spec, method.method_name)
    return ExampleQuestion(spec, (task,), request.input)


def _read_several(message: bytes | memoryview) -> ExampleQuestion:
    request = read_multi_inference_request(message)
    # The first task's model spec decides, as in GetModelSpecFromRequest of
    # multi_inference.cc.
    spec = request.tasks[0].model_spec if request.tasks else None
    if spec is None or not spec.name:
        raise InvalidArgument("ModelSpec has no name specified.")
    return ExampleQuestion(spec, request.tasks, request.input)


def _write_classes(
    servable_id: ServableId,
    question: ExampleQuestion,
    tasks: Sequence[FoundTask],
    outputs: Sequence[Tensors],
) -> bytes:
    return write_classification_response(
        servable_id.name,
        servable_id.version,
        question.key,
        outputs[0],
        question.num_rows,
        tasks[0].signature.labels,
    )


def _write_values(
    servable_id: ServableId,
    question: ExampleQuestion,
    _tasks: Sequence[FoundTask],
    outputs: Sequence[Tensors],
) -> bytes:
    return write_regression_response(
        servable_id.name,
        servable_id.version,
        question.key,
        outputs[0],
        question.num_rows,
    )


def _write_several(
    servable_id: ServableId,
    question: ExampleQuestion,
    tasks: Sequence[FoundTask],
    outputs: Sequence[Tensors],
) -> bytes:
    answers = []
    for task, given in zip(tasks, outputs, strict=True):
        spec, method = task.model_spec, task.method
        if method is Method.CLASSIFY:
            result = write_classification_result(
                given, question.num_rows, task.signature.labels
            )
        else:
            result = write_regression_result(given, question.num_rows)
        answered = ModelSpec(spec.name, servable_id.version, None, spec.signature_key)
        answers.append(InferenceAnswer(answered, method, result))
    return write_multi_inference_response(answers)


CLASSIFY: Final = ExampleRpc(
    answered_request.CLASSIFY,
    functools.partial(_read_one, method=Method.CLASSIFY),
    _write_classes,
)
REGRESS: Final = ExampleRpc(
    answered_request.REGRESS,
    functools.partial(_read_one, method=Method.REGRESS),
    _write_values,
)
MULTI_INFERENCE: Final = ExampleRpc(
    answered_request.MULTI_INFERENCE,
    _read_several,
    _write_several,
    "Requested signature not found in model graph",
)
