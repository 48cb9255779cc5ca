"""MultiInference on the wire: several signatures asked about the same Examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from tfs.codec import wire
from tfs.codec.example_input import ExampleInput, read_fields, read_input
from tfs.codec.model_spec import ModelSpec, read_model_spec, write_model_spec
from tfs.core.errors import InvalidArgument
from tfs.core.signature import Method
from tfs.core.tensor_view import Buffer
from tfs.proto.tensorflow_serving.apis import inference_pb2


@dataclass(frozen=True, slots=True)
class InferenceTaskView:
    """One task of a request. Immutable.

    Attributes:
        model_spec: Model and signature; None if the task has none.
        method_name: ``tensorflow/serving/classify`` or ``.../regress``, as sent.

    """

    model_spec: ModelSpec | None
    method_name: str


@dataclass(frozen=True, slots=True)
class MultiInferenceRequest:
    """A parsed ``MultiInferenceRequest``. Immutable.

    Attributes:
        tasks: The questions, in the order sent.
        input: The rows; empty if the request has none.

    """

    tasks: tuple[InferenceTaskView, ...]
    input: ExampleInput


@dataclass(frozen=True, slots=True)
class InferenceAnswer:
    """The answer to one task. Immutable.

    Attributes:
        model_spec: The task's, with the version that answered.
        method: CLASSIFY or REGRESS: which result it is.
        result: Serialized ``ClassificationResult`` or ``RegressionResult``.

    """

    model_spec: ModelSpec
    method: Method
    result: bytes


def read_multi_inference_request(message: Buffer) -> MultiInferenceRequest:
    """Reads a MultiInference request. Thread-safe.

    Raises:
        InvalidArgument: Not such a request. Malformed Examples are found later.

    """
    parts, input_parts = read_fields(message)
    return MultiInferenceRequest(
        tuple([_task(part) for part in parts]), read_input(input_parts)
    )


def write_multi_inference_response(answers: Sequence[InferenceAnswer]) -> bytes:
    """Returns the serialized ``MultiInferenceResponse``, answers in this order."""
    results = []
    for answer in answers:
        number = _RESULT_FIELD[answer.method]
        spec = wire.delimited(1, write_model_spec(answer.model_spec))
        results.append(wire.delimited(1, spec + wire.delimited(number, answer.result)))
    return b"".join(results)


_RESULT_FIELD = {Method.CLASSIFY: 2, Method.REGRESS: 3}


def _task(part: bytes) -> InferenceTaskView:
    try:
        task = inference_pb2.InferenceTask.FromString(part)
    except DecodeError as error:
        raise InvalidArgument(f"cannot parse a task: {error}") from error
    if not task.HasField("model_spec"):
        return InferenceTaskView(None, task.method_name)
    spec = read_model_spec(task.model_spec.SerializeToString())
    return InferenceTaskView(spec, task.method_name)
