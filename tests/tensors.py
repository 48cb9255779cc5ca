"""Tensors of a few values, for tests that need no torch."""

from __future__ import annotations

from array import array

from tfs.core.dtype import FLOAT32, INT64, STRING
from tfs.core.tensor_view import TensorView


def floats(shape: tuple[int, ...], *values: float) -> TensorView:
    """Returns a float32 tensor; there are as many values as the shape has places."""
    return TensorView.checked(FLOAT32, shape, array("f", values).tobytes())


def integers(shape: tuple[int, ...], *values: int) -> TensorView:
    """Returns an int64 tensor; there are as many values as the shape has places."""
    return TensorView.checked(INT64, shape, array("q", values).tobytes())


def strings(shape: tuple[int, ...], *values: bytes) -> TensorView:
    """Returns a tensor of strings."""
    return TensorView.checked(STRING, shape, values)


def floats_of(view: TensorView) -> list[float]:
    """Returns a float32 tensor's values, without its shape."""
    numbers = array("f")
    assert not isinstance(view.data, tuple)
    numbers.frombytes(bytes(view.data))
    return list(numbers)
