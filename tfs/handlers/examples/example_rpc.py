"""What tells Classify, Regress and MultiInference apart: their requests and replies."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tfs.codec.classification import (
    write_classification_response,
    write_classification_result,
)
from tfs.codec.example import read_example_request
from tfs.codec.model_spec import ModelSpec
from tfs.codec.multi_inference import (
    InferenceAnswer,
    InferenceTaskView,
    read_multi_inference_request,
    write_multi_inference_response,
)
from tfs.codec.regression import write_regression_response, write_regression_result
from tfs.core.errors import InvalidArgument
from tfs.core.servable import Tensors
from tfs.core.servable_id import ServableId
from tfs.core.signature import Method
from tfs.handlers.examples.example_question import ExampleQuestion, FoundTask
from tfs.handlers.limits import model_gate

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
    model_gate.CLASSIFY,
    functools.partial(_read_one, method=Method.CLASSIFY),
    _write_classes,
)
REGRESS: Final = ExampleRpc(
    model_gate.REGRESS,
    functools.partial(_read_one, method=Method.REGRESS),
    _write_values,
)
MULTI_INFERENCE: Final = ExampleRpc(
    model_gate.MULTI_INFERENCE,
    _read_several,
    _write_several,
    "Requested signature not found in model graph",
)
