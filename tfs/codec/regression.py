"""The answer of Regress: one number for each Example.

The request is :func:`tfs.codec.example.read_example_request`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tfs.codec import wire
from tfs.codec.classification import shape_text, type_name
from tfs.codec.predict_response import spec_field
from tfs.core.dtype import FLOAT32
from tfs.core.errors import InvalidArgument
from tfs.core.tensor_view import TensorView

OUTPUTS: Final = "outputs"


def write_regression_response(
    model_name: str,
    version: int,
    signature_name: str,
    outputs: Mapping[str, TensorView],
    num_rows: int,
) -> bytes:
    """Returns the serialized ``RegressionResponse``. Thread-safe.

    See :func:`write_regression_result` for ``outputs`` and what may be wrong.
    """
    result = write_regression_result(outputs, num_rows)
    return wire.delimited(1, result) + spec_field(model_name, version, signature_name)


def write_regression_result(outputs: Mapping[str, TensorView], num_rows: int) -> bytes:
    """Returns the serialized ``RegressionResult``: one value per Example.

    Args:
        outputs: ``outputs``, or a single tensor of any name: float32 [rows] or
            [rows, 1].
        num_rows: How many Examples were asked about.

    Raises:
        InvalidArgument: The outputs do not have that form; says what is wrong.

    """
    view = outputs.get(OUTPUTS)
    if view is None:
        if len(outputs) != 1:
            raise InvalidArgument("Expected one output Tensor.")
        (view,) = outputs.values()
    shape = view.shape
    if len(shape) != 1 and not (len(shape) == 2 and shape[1] == 1):
        raise InvalidArgument(
            "Expected output Tensor shape to be either [batch_size] or "
            f"[batch_size, 1] but got {shape_text(view)}"
        )
    if shape[0] != num_rows:
        raise InvalidArgument(
            "Input batch size did not match output batch size: "
            f"{num_rows} vs. {shape[0]}"
        )
    if view.dtype is not FLOAT32:
        raise InvalidArgument(
            f"Expected output Tensor of DT_FLOAT.  Got: {type_name(view)}"
        )
    data = bytes(view.buffer)
    return b"".join(
        # A Regression of five bytes: the tag of its value, and four of the value.
        [b"\x0a\x05\x0d" + data[start : start + 4] for start in range(0, len(data), 4)]
    )
