"""Regress's answers: one value per Example."""

from __future__ import annotations

import struct

import pytest

from tfs.codec.inference_results import write_regression_response
from tfs.core.dtype import FLOAT32, FLOAT64
from tfs.core.errors import InvalidArgument
from tfs.core.tensor_view import TensorView
from tfs.proto.tensorflow_serving.apis import regression_pb2

DATA = struct.pack("<3f", 0.5, 0, -1)


def written(outputs: dict[str, TensorView], num_rows: int = 3) -> list[float]:
    message = regression_pb2.RegressionResponse.FromString(
        write_regression_response("m", 3, "sig", outputs, num_rows)
    )
    assert message.model_spec.version.value == 3
    assert message.HasField("result")
    return [each.value for each in message.result.regressions]


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
@pytest.mark.parametrize("name", ["outputs", "price"])
def test_each_example_has_its_value(shape: tuple[int, ...], name: str) -> None:
    """[rows] or [rows, 1], zeros kept; a single output may have any name."""
    assert written({name: TensorView(FLOAT32, shape, DATA)}) == [0.5, 0.0, -1.0]


def test_the_output_called_outputs_is_the_answer() -> None:
    """If there are several outputs, the one called "outputs" is the answer."""
    view = TensorView(FLOAT32, (3,), DATA)
    other = TensorView(FLOAT32, (3,), bytes(12))
    assert written({"a": other, "outputs": view}) == [0.5, 0.0, -1.0]


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({}, r"Expected one output Tensor\."),
        (
            {"outputs": TensorView(FLOAT32, (3, 2), bytes(24))},
            r"either \[batch_size\] or \[batch_size, 1\] but got \[3,2\]",
        ),
        (
            {"outputs": TensorView(FLOAT32, (), bytes(4))},
            r"either \[batch_size\] or \[batch_size, 1\] but got \[\]",
        ),
        (
            {"outputs": TensorView(FLOAT32, (2,), bytes(8))},
            r"Input batch size did not match output batch size: 3 vs. 2",
        ),
        (
            {"outputs": TensorView(FLOAT64, (3,), bytes(24))},
            r"Expected output Tensor of DT_FLOAT\.  Got: DT_DOUBLE",
        ),
    ],
)
def test_outputs_of_another_form_are_refused(
    outputs: dict[str, TensorView], message: str
) -> None:
    """regressor MalformedOutputs, UnexpectedOutputTensorSize,
    UnexpectedOutputTensorType: its messages, word for word.
    """
    with pytest.raises(InvalidArgument, match=message):
        written(outputs)
