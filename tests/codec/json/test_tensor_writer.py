"""Replies in JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tensors import floats, integers, strings
from tfs.codec.json.predict_body import Layout, PredictBody
from tfs.codec.json.tensor_writer import write_predict_reply
from tfs.core.dtype import BFLOAT16, BOOL, COMPLEX64, DTYPES, FLOAT8_E5M2
from tfs.core.errors import InvalidArgument, ServingError, Unimplemented
from tfs.core.signature import Method, Signature, TensorSpec
from tfs.core.tensor_view import TensorView


def written(layout: Layout, **outputs: TensorView) -> bytes:
    return write_predict_reply(outputs, layout)


def test_rows_of_one_output_are_its_values() -> None:
    """Their rows stand in a list.

    FromJsonSingleTensor, FromJsonSingleScalarTensor; the digits read back as the same
    float (FromJsonSingleFloatTensorSixDigitPrecision).
    """
    body = written(Layout.ROWS, y=floats((2, 2), 1, 0.1, 3, 1e20))
    assert body == b'{"predictions":[[1.0,0.1],[3.0,1e20]]}' or json.loads(body) == {
        "predictions": [[1.0, 0.1], [3.0, 1e20]]
    }
    assert b"0.1]" in body


def test_rows_of_several_outputs_are_objects() -> None:
    """Each object has a value of each output (FromJsonMultipleNamedTensors)."""
    body = written(Layout.ROWS, a=integers((2,), 1, 2), b=strings((2,), b"x", b"y"))
    assert json.loads(body) == {"predictions": [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]}


def test_columns_have_the_outputs_by_name_or_alone() -> None:
    """One output needs no name (FromJsonSingleTensor, FromJsonMultipleNamedTensors)."""
    body = written(Layout.COLUMNS, a=integers((), 1), b=strings((1, 1), b"x"))
    assert json.loads(body) == {"outputs": {"a": 1, "b": [["x"]]}}
    assert json.loads(written(Layout.COLUMNS, y=floats((1,), 2))) == {"outputs": [2.0]}


def test_bytes_are_base64_where_the_name_says_so() -> None:
    """Elsewhere bytes are text, whatever they hold (FromJsonSingleBytesTensor)."""
    body = written(
        Layout.COLUMNS, image_bytes=strings((1,), b"\xff"), s=strings((1,), b"\xffa")
    )
    assert json.loads(body) == {
        "outputs": {"image_bytes": [{"b64": "/w=="}], "s": ["�a"]}
    }


def test_what_is_not_finite_is_a_token() -> None:
    """Other floats keep their few digits (FromJsonSingleFloatTensorNonFinite)."""
    body = written(
        Layout.ROWS, y=floats((4,), float("nan"), float("inf"), -float("inf"), 0.1)
    )
    assert body == b'{"predictions":[NaN,Infinity,-Infinity,0.1]}'


def test_a_string_that_says_null_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays are looked through only if the word stands there, which is costly."""
    looks: list[Any] = []
    is_finite: Any = np.isfinite

    def looked(value: Any) -> Any:
        looks.append(value)
        return is_finite(value)

    monkeypatch.setattr(np, "isfinite", looked)
    numbers = floats((2,), 1, 0.1)
    rows = [{"s": "x", "y": 1.0}, {"s": "y", "y": 0.1}]
    body = written(Layout.ROWS, s=strings((2,), b"x", b"y"), y=numbers)
    assert (json.loads(body), looks) == ({"predictions": rows}, [])
    body = written(Layout.ROWS, s=strings((2,), b"null", b"y"), y=numbers)
    assert json.loads(body) == {"predictions": [{"s": "null", "y": 1.0}, rows[1]]}
    assert looks


def test_other_types_have_forms_by_rule() -> None:
    """A complex number is a list of two; bfloat16 a number; a bool true or false."""
    body = written(
        Layout.COLUMNS,
        c=TensorView(COMPLEX64, (1,), floats((2,), 1, -2).data),
        h=TensorView(BFLOAT16, (1,), b"\x80\x3f"),
        t=TensorView(BOOL, (2,), b"\x01\x00"),
    )
    assert json.loads(body) == {
        "outputs": {"c": [[1.0, -2.0]], "h": [1.0], "t": [True, False]}
    }
    with pytest.raises(Unimplemented, match="float8_e5m2"):
        written(Layout.COLUMNS, y=TensorView(FLOAT8_E5M2, (1,), b"\x00"))


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({}, "Cannot convert empty tensor map to JSON"),
        ({"y": floats((), 1)}, "Tensor name: y has no shape information"),
        (
            {"y": floats((1,), 1), "z": floats((2,), 1, 2)},
            "Tensor name: z has inconsistent batch size: 2 expecting: 1",
        ),
    ],
)
def test_outputs_that_are_no_rows_are_refused(
    outputs: dict[str, TensorView], message: str
) -> None:
    """Messages are those of upstream.

    FromJsonSingleTensorErrors, FromJsonMultipleNamedTensorsErrors,
    FromJsonMultipleZeroBatchTensorsErrors.
    """
    with pytest.raises(InvalidArgument, match=message):
        write_predict_reply(outputs, Layout.ROWS)


def test_no_rows_are_an_empty_list() -> None:
    """Also of several (FromJsonSingleZeroBatchTensor, FromJsonMultipleZeroBatchTensors)."""
    assert written(Layout.ROWS, y=integers((0, 2))) == b'{"predictions":[]}'
    both = written(Layout.ROWS, y=floats((0, 3, 4)), z=strings((0, 1, 2)))
    assert both == b'{"predictions":[]}'


@pytest.mark.parametrize("shape", [(2, 0), (0,), (1, 2, 0), (0, 3)])
def test_empty_tensors_keep_what_shape_json_shows(shape: tuple[int, ...]) -> None:
    """Those of strings as those of numbers."""
    for view in (floats(shape), strings(shape)):
        found = json.loads(written(Layout.COLUMNS, y=view))["outputs"]
        for size in shape:
            assert len(found) == size
            if not size:
                break
            found = found[0]


@given(data=st.data(), name=st.sampled_from(["float32", "float64", "int64", "uint64"]))
def test_numbers_come_back_as_they_were(data: st.DataObject, name: str) -> None:
    """Bit for bit, but for the kinds of NaN."""
    dtype = DTYPES[name]
    size = data.draw(st.integers(1, 8))
    raw = data.draw(
        st.binary(min_size=size * dtype.item_bytes, max_size=size * dtype.item_bytes)
    )
    view = TensorView(dtype, (size,), raw)
    body = write_predict_reply({"x": view}, Layout.COLUMNS)
    sent = body.replace(b'"outputs"', b'"inputs"')
    spec = TensorSpec(dtype, (-1,))
    signature = Signature(Method.PREDICT, {"x": spec}, {"y": spec})
    try:
        back = PredictBody.parse(sent).read(signature)["x"]
    except ServingError as error:  # pragma: no cover - shown when it fails
        raise AssertionError(body) from error
    if b"NaN" not in body:
        assert bytes(back.buffer) == raw
