"""Bodies of /infer: JSON, and raw contents behind it."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from tests.codec.samples import DATA
from tfs.codec.oip.datatype import DATATYPES, raw_contents
from tfs.codec.oip.infer_json import JsonReplies, parse_infer
from tfs.codec.oip.infer_view import InferRequestView
from tfs.core.dtype import BFLOAT16, COMPLEX64, FLOAT32, INT64, STRING
from tfs.core.errors import ServingError, Unimplemented
from tfs.core.tensor_view import TensorView

FLOATS = TensorView(FLOAT32, (2, 2), struct.pack("<4f", 1, 2, 3, 4))


def read(
    document: dict[str, Any], binary: bytes = b""
) -> tuple[InferRequestView, JsonReplies]:
    text = json.dumps(document).encode()
    return parse_infer(text + binary, len(text))


def floats(**fields: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": "FP32", "shape": [2, 2], **fields}


@pytest.mark.parametrize("data", [[1, 2, 3, 4], [[1.0, 2.0], [3, 4]]])
def test_data_may_be_flat_or_nested(data: Any) -> None:
    """Both are the same tensor."""
    body, replies = read({"id": "7", "inputs": [floats(data=data)]})
    assert body.inputs == {"x": FLOATS}
    assert replies.request_id == "7"


@pytest.mark.parametrize("dtype", DATATYPES)
def test_each_datatype_travels_behind_the_json(dtype: Any) -> None:
    """In the order of the inputs, beside one that is within it."""
    view = TensorView(dtype, (2, 3), DATA[dtype])
    raw = bytes(raw_contents(view))
    binary = {"parameters": {"binary_data_size": len(raw)}}
    inputs = [
        {"name": "a", "datatype": DATATYPES[dtype], "shape": [2, 3], **binary},
        floats(data=[1, 2, 3, 4]),
        {"name": "b", "datatype": DATATYPES[dtype], "shape": [3, 2], **binary},
    ]
    body, _ = read({"inputs": inputs, "outputs": [{"name": "a"}]}, raw + raw)
    assert body.inputs["a"] == view
    assert body.inputs["b"] == TensorView(dtype, (3, 2), view.data)
    assert list(body.output_filter) == ["a"]


def test_values_are_read_by_their_datatype() -> None:
    """64-bit integers keep every digit, strings are text or base64, BF16 are numbers."""
    body, _ = read(
        {
            "inputs": [
                {"name": "i", "datatype": "INT64", "shape": [1], "data": [2**63 - 1]},
                {
                    "name": "s",
                    "datatype": "BYTES",
                    "shape": [2],
                    "data": ["é", {"b64": "/w=="}],
                },
                {"name": "h", "datatype": "BF16", "shape": [], "data": [1.5]},
                {"name": "b", "datatype": "BOOL", "shape": [2], "data": [True, False]},
            ]
        }
    )
    assert body.inputs["i"].data == struct.pack("<q", 2**63 - 1)
    assert body.inputs["s"].strings == ("é".encode(), b"\xff")
    assert body.inputs["h"] == TensorView(BFLOAT16, (), b"\xc0\x3f")
    assert body.inputs["b"].data == b"\1\0"


def test_an_answer_is_json_with_raw_contents_where_they_are_wanted() -> None:
    """An output's own word counts before the request's."""
    outputs = {
        "a": FLOATS,
        "b": TensorView(STRING, (1,), (b"text",)),
        "c": TensorView(INT64, (2,), struct.pack("<2q", 1, 2)),
    }
    _, replies = read({"id": "7", "inputs": []})
    plain = replies.write(("m", 3, ""), outputs)
    assert isinstance(plain, bytes)
    assert json.loads(plain) == {
        "model_name": "m",
        "model_version": "3",
        "id": "7",
        "outputs": [
            {"name": "a", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]},
            {"name": "b", "datatype": "BYTES", "shape": [1], "data": ["text"]},
            {"name": "c", "datatype": "INT64", "shape": [2], "data": [1, 2]},
        ],
    }
    _, replies = read(
        {
            "inputs": [],
            "parameters": {"binary_data_output": True},
            "outputs": [
                {"name": "a"},
                {"name": "b"},
                {"name": "c", "parameters": {"binary_data": False}},
            ],
        }
    )
    head, *parts = replies.write(("m", 3, ""), outputs)
    found = {each["name"]: each for each in json.loads(bytes(head))["outputs"]}
    assert found["a"]["parameters"] == {"binary_data_size": 16}
    assert found["b"]["parameters"] == {"binary_data_size": 8}
    assert found["c"]["data"] == [1, 2]
    assert parts == [FLOATS.data, b"\4\0\0\0text"]


@pytest.mark.parametrize(
    ("document", "binary", "words"),
    [
        ({"inputs": {}}, b"", "inputs must be a list"),
        ({"inputs": [3]}, b"", "every one of inputs must be an object"),
        ({"id": 7}, b"", "id must be a string"),
        ({"inputs": [floats()]}, b"", "x: it has neither data"),
        ({"inputs": [floats(data=3)]}, b"", "list of elements"),
        ({"inputs": [floats(data=[1, 2, 3])]}, b"", "has the shape .3.; FP32"),
        ({"inputs": [floats(data=[[1, 2, 3, 4]])]}, b"", "has the shape .1, 4."),
        ({"inputs": [floats(data=[1, 2, 3, "4"])]}, b"", "not of expected type: float"),
        ({"inputs": [floats(shape=[-1, 2], data=[])]}, b"", "list of sizes"),
        ({"inputs": [floats(shape=[2**62, 8], data=[])]}, b"", "too many elements"),
        ({"inputs": [floats(shape=[2**40, 0], data=[])]}, b"", "more than was sent"),
        (
            {"inputs": [floats(parameters={"binary_data_size": 16})]},
            b"1234",
            "4 bytes are left",
        ),
        (
            {"inputs": [floats(parameters={"binary_data_size": 4})]},
            b"1234",
            "4 bytes of raw contents",
        ),
        ({"inputs": [floats(data=[1, 2, 3, 4])]}, b"12", "2 bytes more"),
        (
            {"inputs": [floats(data=[1] * 4), floats(data=[1] * 4)]},
            b"",
            "'x' comes twice",
        ),
        ({"outputs": [{"name": "y"}, {"name": "y"}]}, b"", "'y' comes twice"),
        (
            {"inputs": [floats(parameters={"shared_memory_region": "r"})]},
            b"",
            "no shared memory",
        ),
    ],
)
def test_what_is_wrong_with_a_body_is_named(
    document: dict[str, Any], binary: bytes, words: str
) -> None:
    """The error names the input."""
    with pytest.raises(ServingError, match=words):
        read(document, binary)


def test_outputs_that_the_protocol_has_no_name_for_are_not_written() -> None:
    """The caller is told by which RPC they travel."""
    view = TensorView(COMPLEX64, (1,), bytes(8))
    with pytest.raises(Unimplemented, match="ask by Predict"):
        JsonReplies().write(("m", 3, ""), {"y": view})
