"""MultiInference: questions read, answers written."""

from __future__ import annotations

import struct

import pytest

from tfs.codec.inference_results import (
    InferenceAnswer,
    read_multi_inference_request,
    write_classification_result,
    write_multi_inference_response,
    write_regression_result,
)
from tfs.codec.model_spec import ModelSpec
from tfs.core.dtype import FLOAT32
from tfs.core.errors import InvalidArgument
from tfs.core.signature import Method
from tfs.core.tensor_view import TensorView
from tfs.proto.tensorflow_serving.apis import inference_pb2


def test_a_request_is_taken_apart() -> None:
    """Tasks in order, absent specs told apart, and the rows."""
    message = inference_pb2.MultiInferenceRequest()
    task = message.tasks.add(method_name="tensorflow/serving/classify")
    task.model_spec.name = "m"
    task.model_spec.signature_name = "a"
    message.tasks.add(method_name="x")
    message.input.example_list.examples.add()
    request = read_multi_inference_request(message.SerializeToString())
    assert [(task.model_spec, task.method_name) for task in request.tasks] == [
        (ModelSpec("m", None, None, "a"), "tensorflow/serving/classify"),
        (None, "x"),
    ]
    assert request.input.examples == (b"",)


def test_garbage_is_refused() -> None:
    """Garbage is refused in the message and in each of its tasks."""
    for message in (b"\x0a", b"\x0a\x01\xff", b"\x0a\x03\x12\x01\xff"):
        with pytest.raises(InvalidArgument, match="cannot parse"):
            read_multi_inference_request(message)


def test_answers_are_written_in_order() -> None:
    """Each with its spec and the result of its method."""
    data = struct.pack("<2f", 1, 2)
    scores = {"scores": TensorView(FLOAT32, (1, 2), data)}
    values = {"outputs": TensorView(FLOAT32, (2,), data)}
    message = inference_pb2.MultiInferenceResponse.FromString(
        write_multi_inference_response(
            [
                InferenceAnswer(
                    ModelSpec("m", 1, None, "a"),
                    Method.CLASSIFY,
                    write_classification_result(scores, 1),
                ),
                InferenceAnswer(
                    ModelSpec("m", 1, None, "b"),
                    Method.REGRESS,
                    write_regression_result(values, 2),
                ),
            ]
        )
    )
    first, second = message.results
    assert first.model_spec.signature_name == "a"
    assert first.model_spec.version.value == 1
    classes = first.classification_result.classifications[0].classes
    assert [each.score for each in classes] == [1, 2]
    assert [each.value for each in second.regression_result.regressions] == [1, 2]
