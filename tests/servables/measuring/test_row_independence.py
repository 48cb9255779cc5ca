"""What calls with example rows show of a model, here a function of arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from tfs.core.dtype import FLOAT32, INT64
from tfs.core.errors import InvalidArgument
from tfs.core.servable import Tensors
from tfs.core.signature import Method, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.servables.measuring.probe_subject import ProbeInputs
from tfs.servables.measuring.row_independence import RowIndependence, row_independence

SIGNATURE = Signature(
    Method.PREDICT,
    {
        "x": TensorSpec(FLOAT32, (-1, -1), pad=0.0, mask="mask"),
        "mask": TensorSpec(INT64, (-1, -1)),
    },
    {"y": TensorSpec(FLOAT32, (-1,))},
)


def view_of(array: Any) -> TensorView:
    dtype = INT64 if array.dtype == np.int64 else FLOAT32
    return TensorView(dtype, array.shape, array.tobytes())


def shown_of(model: Callable[[Any, Any], Any], length: int = 5) -> RowIndependence:
    """Returns what is shown of a function of x and mask, both [rows, length]."""

    def array_of(view: TensorView, kind: type) -> Any:
        assert not isinstance(view.data, tuple)
        return np.frombuffer(view.data, kind).reshape(view.shape)

    def call(inputs: Mapping[str, TensorView]) -> Tensors:
        x = array_of(inputs["x"], np.float32)
        mask = array_of(inputs["mask"], np.int64)
        return {"y": view_of(model(x, mask).astype(np.float32))}

    x = np.arange(2 * length, dtype=np.float32).reshape(2, length) + 1
    rows = {"x": view_of(x), "mask": view_of(np.ones((2, length), np.int64))}
    return row_independence(call, ProbeInputs(SIGNATURE, rows, is_authors=True))


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize(
    "model",
    [
        lambda x, mask: (x * mask).sum(1) / np.maximum(1, mask.sum(1)),
        lambda x, mask: x.sum(1),
        lambda x, mask: 2 * x,  # per value: answers for the padding too
    ],
)
def test_padding_that_changes_nothing_is_let_pass(
    model: Callable[[Any, Any], Any], length: int
) -> None:
    """A model that heeds its mask, or whose answer padding does not reach."""
    shown = shown_of(model, length)
    assert shown.shown
    assert shown.why_padding == ""


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize(
    "model",
    [
        lambda x, mask: x.mean(1),
        lambda x, mask: x[:, -1],
        lambda x, mask: np.full(len(x), x.shape[1]) + x[:, 0],
        lambda x, mask: x[:, ::-1] + 0,
    ],
)
def test_padding_that_changes_an_answer_is_seen(
    model: Callable[[Any, Any], Any], length: int
) -> None:
    """Rows of equal length are independent all the same, and may be joined."""
    shown = shown_of(model, length)
    assert shown.shown
    assert shown.why_padding.startswith("output 'y' changed")


def test_a_model_that_refuses_other_lengths_is_joined_by_length() -> None:
    """The refusal is the reason; it says nothing about rows of equal length."""

    def model(x: Any, mask: Any) -> Any:
        if x.shape[1] != 5:
            raise InvalidArgument("five, please")
        return x.sum(1)

    shown = shown_of(model)
    assert shown.shown
    assert "five, please" in shown.why_padding


@pytest.mark.parametrize(
    "model",
    [
        lambda x, mask: x.sum(1) + (x == 0).all(1).any(),
        lambda x, mask: x.sum(1) / max(100.0, x.max()),
        lambda x, mask: np.round(x.sum(1) / np.abs(x).max() * 127) * np.abs(x).max(),
        lambda x, mask: x.sum(1) + (np.abs(x).max() > 1000),
    ],
)
def test_what_shows_only_beside_strange_rows_is_seen(
    model: Callable[[Any, Any], Any],
) -> None:
    """Example rows are alike; a caller's neighbours need not be."""
    shown = shown_of(model)
    assert shown.shown is False
    assert "output 'y'" in shown.why


def test_a_model_may_refuse_strange_rows() -> None:
    """A range that it checks says nothing about rows within it."""

    def model(x: Any, mask: Any) -> Any:
        if x.max() > 100:
            raise InvalidArgument("out of range")
        return x.sum(1)

    assert shown_of(model).shown
