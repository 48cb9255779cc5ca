"""Predict requests in JSON: what is read, and what is said of what is wrong.

Most cases are those of TensorFlow Serving's util/json_tensor_test.cc, named in brackets.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tensors import floats, integers, strings
from tfs.codec.json.predict_body import (
    MAX_ITEMS,
    Layout,
    PlainBody,
    PredictBody,
    read_plain_json,
)
from tfs.codec.json.tensor_reader import read_tensor
from tfs.codec.json.tensor_writer import write_plain_replies, write_predict_reply
from tfs.core.dtype import (
    BFLOAT16,
    BOOL,
    COMPLEX64,
    DTYPES,
    FLOAT32,
    INT32,
    INT64,
    STRING,
    DType,
)
from tfs.core.errors import InvalidArgument, ServingError
from tfs.core.signature import Method, Signature, TensorSpec
from tfs.core.tensor_view import TensorView


def signature(**inputs: str) -> Signature:
    specs = {name: TensorSpec(DTYPES[dtype], (-1,)) for name, dtype in inputs.items()}
    return Signature(Method.PREDICT, specs, {"y": TensorSpec(FLOAT32, (-1,))})


ONE = signature(x="float32")
TWO = signature(a="float32", b="int64")
TWO_FLOATS = signature(x="float32", scale="float32")


def read(body: object, of: Signature = ONE) -> dict[str, TensorView]:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return PredictBody.parse(text).read(of)


@pytest.mark.parametrize(
    ("instances", "expected"),
    [
        ([1.0], floats((1,), 1)),
        ([1, 2.5], floats((2,), 1, 2.5)),
        ([[1, 2], [3, 4]], floats((2, 2), 1, 2, 3, 4)),
        ([[[1], [2]], [[3], [4]]], floats((2, 2, 1), 1, 2, 3, 4)),
        ([{"x": [1, 2]}, {"x": [3, 4]}], floats((2, 2), 1, 2, 3, 4)),
        ([[]], floats((1, 0))),
        ([1e39], floats((1,), float("inf"))),
    ],
)
def test_rows_become_one_tensor(instances: object, expected: TensorView) -> None:
    """Its first dimension counts the rows (SingleUnnamedTensor, MixedInputForFloatTensor)."""
    assert read({"instances": instances}) == {"x": expected}


def test_an_integer_just_beyond_what_float64_holds_is_rounded_once() -> None:
    """By way of float64 it would become another float32."""
    expected = TensorView(FLOAT32, (1,), bytes.fromhex("0100005a"))
    assert read({"instances": [2**53 + 2**29 + 1]}) == {"x": expected}


def test_named_rows_become_a_tensor_for_each_input() -> None:
    """Each row has a value for each (MultipleNamedTensor)."""
    rows = [{"a": [1.5, 2], "b": 7}, {"b": 8, "a": [3, 4]}]
    body = PredictBody.parse(json.dumps({"instances": rows}).encode())
    assert body.layout is Layout.ROWS
    assert body.read(TWO) == {
        "a": floats((2, 2), 1.5, 2, 3, 4),
        "b": integers((2,), 7, 8),
    }


@pytest.mark.parametrize(
    ("inputs", "of", "expected"),
    [
        ([[1, 2]], ONE, {"x": floats((1, 2), 1, 2)}),
        (3, ONE, {"x": floats((), 3)}),
        ({"x": [1]}, ONE, {"x": floats((1,), 1)}),
        (
            {"a": [1], "b": [[2, 3]], "other": "ignored"},
            TWO,
            {"a": floats((1,), 1), "b": integers((1, 2), 2, 3)},
        ),
    ],
)
def test_columns_are_tensors_as_they_are(
    inputs: object, of: Signature, expected: dict[str, TensorView]
) -> None:
    """Inputs may have first sizes of their own.

    SingleUnnamedTensorColumnarFormat, MultipleNamedTensorColumnarFormat.
    """
    assert read({"inputs": inputs}, of) == expected


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": [[1, 2]]},
        {"inputs": {"x": [[1, 2]]}},
        {"instances": [[1, 2]]},
        {"instances": [{"x": [1, 2]}]},
    ],
)
def test_what_has_a_default_may_be_left_out(body: object) -> None:
    """The default stands for it later; one that is sent counts."""
    defaulted = replace(TWO_FLOATS, defaults={"scale": floats((1,), 1)})
    assert read(body, defaulted) == {"x": floats((1, 2), 1, 2)}
    sent = {"inputs": {"x": [1], "scale": [3]}}
    assert read(sent, defaulted)["scale"] == floats((1,), 3)


@pytest.mark.parametrize("key", ["inputs", "instances"])
def test_a_plain_value_is_for_the_only_input_although_it_has_a_default(
    key: str,
) -> None:
    """It would be lost if the default stood for it."""
    only = replace(signature(x="float32"), defaults={"x": floats((1,), 1)})
    assert read({key: [5]}, only) == {"x": floats((1,), 5)}


def test_strings_are_text_or_base64() -> None:
    """Also where one stands for a whole row.

    SingleUnnamedTensorBase64Scalars, SingleUnnamedTensorBase64Lists,
    SingleNamedTensorBase64.
    """
    texts = signature(x="string")
    rows = ["ab", {"b64": "/wA="}, {"b64": "w7w"}]
    expected = strings((3,), b"ab", b"\xff\x00", "ü".encode())
    assert read({"instances": rows}, texts) == {"x": expected}
    assert read({"inputs": {"b64": "YQ=="}}, texts) == {"x": strings((), b"a")}
    assert read({"instances": [[{"b64": "YQ=="}], ["b"]]}, texts) == {
        "x": strings((2, 1), b"a", b"b")
    }
    named = [{"x": {"b64": "YQ=="}}, {"x": "b"}]
    assert read({"instances": named}, texts) == {"x": strings((2,), b"a", b"b")}


def test_base64_may_be_broken_into_lines() -> None:
    """As encoders for mail do, and TensorFlow Serving takes."""
    encoded = base64.encodebytes(bytes(range(256))).decode()
    view = read({"inputs": [{"b64": encoded}]}, signature(x="string"))["x"]
    assert view.strings == (bytes(range(256)),)


def test_a_row_by_itself_keeps_its_number_for_errors() -> None:
    """It says which row of the request is wrong."""
    for of, rows in ((ONE, [1, "x"]), (TWO, [{"a": 1, "b": 2}, {"a": 1}])):
        good, bad = PredictBody.parse(json.dumps({"instances": rows}).encode()).rows()
        good.read(of)
        with pytest.raises(InvalidArgument, match="process element: 1 of"):
            bad.read(of)


@pytest.mark.parametrize("bad", [[1], [1, "a"], [[1, 2]], {"x": [1, 2]}, [1, True]])
@pytest.mark.parametrize("index", range(1, 7))
def test_the_first_row_at_fault_is_named(index: int, bad: object) -> None:
    """Whatever stands behind it; the others are compared with the first."""
    rows: list[object] = [[1, 2]] * index + [bad] + [[1, 2], bad, [None, 2]]
    with pytest.raises(InvalidArgument, match=rf"\b{index} of "):
        read({"instances": rows})


def test_a_row_at_fault_is_found_in_few_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each row took twenty times as long as reading them, on the loop."""
    num_reads = 0

    def counted(value: Any, dtype: DType, *, has_bools: bool) -> TensorView:
        nonlocal num_reads
        num_reads += 1
        return read_tensor(value, dtype, has_bools=has_bools)

    monkeypatch.setattr("tfs.codec.json.predict_body.read_tensor", counted)
    with pytest.raises(InvalidArgument, match="element: 5000 of"):
        read({"instances": [[1, 2]] * 5000 + [[1]]})
    assert num_reads < 20


def test_results_per_item_are_for_a_bounded_number_of_rows() -> None:
    """Each is a request of its own, and 200,000 stopped the server for half a minute."""
    rows = [[0]] * (MAX_ITEMS + 1)
    whole = PredictBody.parse(json.dumps({"instances": rows}).encode())
    with pytest.raises(InvalidArgument, match="up to 1024 rows; 1025 came"):
        whole.rows()
    assert len(replace(whole, values=rows[1:]).rows()) == MAX_ITEMS


def test_signature_is_named_beside_the_values() -> None:
    """Other keys of a request are ignored (SingleUnnamedTensorWithSignature)."""
    body = PredictBody.parse(b'{"signature_name": "s", "inputs": 1, "more": {}}')
    assert (body.signature_name, body.layout) == ("s", Layout.COLUMNS)


@pytest.mark.parametrize("text", [b"NaN", b"Infinity", b"-Infinity", b"Inf", b"-Inf"])
def test_what_is_no_number_in_json_is_one_here(text: bytes) -> None:
    """TensorFlow Serving reads these tokens (TensorFromNonNullTerminatedBuffer)."""
    view = read(b'{"instances": [%s]} and text behind' % text)["x"]
    assert view == floats((1,), float(text))


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs": [1], "inputs": [2]}',
        b'{"inputs": {"x": [1], "x": [2]}}',
        b'{"inputs": {"x": [1], "note": "Inf \\" Inf", "more": Inf, "x": [2]}}',
    ],
)
def test_of_a_key_that_comes_twice_the_last_value_counts(body: bytes) -> None:
    """By both parsers, at any level, and it takes no time to look for one."""
    assert read(body) == {"x": floats((1,), 2)}


def test_a_string_without_an_end_takes_as_long_as_its_bytes() -> None:
    """Each quote in it was once a new beginning: 32 KB took seconds, a megabyte an hour."""
    with pytest.raises(InvalidArgument, match="Missing a closing quotation mark"):
        read(b'{"x": Inf, "' + b'\\"' * 500_000)


def test_many_keys_take_as_long_as_their_bytes() -> None:
    """Each was once searched for in the whole body: a megabyte took minutes."""
    keys = ", ".join(f'"k{index}": 1' for index in range(300_000))
    assert read(b'{"inputs": {%s, "x": [1]}}' % keys.encode()) == {"x": floats((1,), 1)}


def test_integers_never_pass_through_a_float() -> None:
    """The largest of each type keep their last digit."""
    large = (1 << 63) - 1
    assert read({"inputs": [large, -large - 1]}, signature(x="int64")) == {
        "x": integers((2,), large, -large - 1)
    }
    view = read({"inputs": [(1 << 64) - 1]}, signature(x="uint64"))["x"]
    assert view.data == b"\xff" * 8


def test_a_large_integer_is_rounded_once_on_its_way_to_a_float() -> None:
    """Also where numpy reads floats at once, by way of float64."""
    rounded_twice = 2**60 + 2**36 + 1
    view = read({"inputs": [rounded_twice]})["x"]
    assert view.data == np.array([rounded_twice]).astype("<f4").tobytes()


def test_types_that_tensorflow_serving_has_no_json_for() -> None:
    """bfloat16 is rounded to even, a complex number is a list of two."""
    view = read({"inputs": [1.0, 3.3895314e38, 1.00390625]}, signature(x="bfloat16"))
    assert view == {"x": TensorView(BFLOAT16, (3,), b"\x80\x3f\x7f\x7f\x80\x3f")}
    nan = read(b'{"inputs": [NaN]}', signature(x="bfloat16"))["x"]
    assert nan.data == b"\xc0\x7f"
    assert read({"instances": [[1, 2]]}, signature(x="complex64")) == {
        "x": TensorView(COMPLEX64, (1,), floats((2,), 1, 2).data)
    }
    assert read({"inputs": [True, False]}, signature(x="bool")) == {
        "x": TensorView(BOOL, (2,), b"\x01\x00")
    }


@pytest.mark.parametrize(
    ("body", "of", "message"),
    [
        (b"", ONE, "JSON Parse error: The document is empty"),
        (b"  ", ONE, "JSON Parse error: The document is empty. at offset: 2"),
        (b"{", ONE, "JSON Parse error: Missing a name for object member. at offset: 1"),
        (b"instances = [1]", ONE, "JSON Parse error: Invalid value. at offset: 0"),
        (b"\xff", ONE, "JSON Parse error: Invalid encoding"),
        (b"[" * 250_000, ONE, "JSON Parse error: "),
        (b'{"instances":' + b"[" * 900 + b"]" * 900 + b"}", ONE, "levels deep"),
        (b'{"instances": [1e999]}', ONE, "Number too big to be stored in double"),
        (b"[1]", ONE, "JSON Value: [1] Is not object"),
        ({"x": 1}, ONE, "Missing 'inputs' or 'instances' key"),
        ({"inputs": 1, "instances": [1]}, ONE, "expecting only one of"),
        ({"instances": 1}, ONE, "Expecting 'instances' to be an list/array"),
        ({"instances": []}, ONE, "No values in 'instances' array"),
        ({"inputs": 1, "signature_name": 1}, ONE, "key must be a string value"),
        ({"instances": [[1, 2], [3]]}, ONE, "Expecting tensor size: 2 but got: 1"),
        (
            {"instances": [[[1, 2]], [[3], [4]]]},
            ONE,
            "Failed to process element: 1 of 'instances' list. Error: INVALID_ARGUMENT: "
            "Expecting shape [1,2] but got: [2,1]",
        ),
        ({"inputs": [[1], 2]}, ONE, "JSON Value: 2 found at incorrect level: 2"),
        ({"inputs": [1, [2]]}, ONE, "list at unexpected level: 1 expected < 1"),
        (
            {"inputs": [[1], [2, 3]]},
            ONE,
            "list at unexpected size: 2 at level: 1 expected size: 1",
        ),
        ({"instances": [1]}, TWO, "expecting list of objects as multiple"),
        ({"inputs": [1]}, TWO, "expecting an object as multiple"),
        ({"inputs": {"a": 1}}, TWO, "Missing named input: b in 'inputs' object."),
        ({"instances": [{"a": 1}]}, TWO, "keys must be equal to: a,b"),
        (
            {"instances": [{"a": 1, "c": 2}]},
            TWO,
            "key: c of 'instances' list. Error: INVALID_ARGUMENT: JSON object: does not "
            "have named input: c",
        ),
        (
            {"instances": [{"a": 1, "b": 1}, [1]]},
            TWO,
            "Expecting object but got list at item 1 of input list",
        ),
        (
            {"instances": [1, {"x": 1}]},
            ONE,
            "Expecting value/list but got object at item 1 of input list",
        ),
        (
            {"instances": [1, "2"]},
            ONE,
            "Failed to process element: 1 of 'instances' list. Error: "
            'INVALID_ARGUMENT: JSON Value: "2" Type: String is not of expected type: '
            "float",
        ),
        ({"inputs": [True]}, ONE, "JSON Value: true Type: True is not of expected"),
        ({"inputs": [1, None]}, ONE, "JSON Value: null Type: Null is not of"),
        ({"inputs": [1.0]}, signature(x="int32"), "not of expected type: int32"),
        ({"inputs": [1 << 31]}, signature(x="int32"), "not of expected type: int32"),
        ({"inputs": [300]}, signature(x="uint8"), "not of expected type: uint8"),
        ({"inputs": [1 << 64]}, signature(x="uint64"), "not of expected type: uint64"),
        ({"inputs": [-1]}, signature(x="uint64"), "not of expected type: uint64"),
        ({"inputs": [1]}, signature(x="bool"), "not of expected type: bool"),
        ({"inputs": [True, 2]}, signature(x="int64"), "Type: True is not of expected"),
        ({"inputs": [1]}, signature(x="string"), "not of expected type: string"),
        ({"inputs": [{"b64": "a!"}]}, signature(x="string"), "Unable to base64 decode"),
        (b'{"inputs": ["\t"]}', ONE, "Invalid encoding in string. at offset: 13"),
        ({"inputs": [{"b64": 1}]}, signature(x="string"), "for base64 data"),
        (b'{"inputs": ["\\ud800"]}', signature(x="string"), "half of a surrogate pair"),
        ({"inputs": [1, 2, 3]}, signature(x="complex64"), "list of two numbers"),
        ({"inputs": [1]}, signature(x="float8_e5m2"), "to type: float8_e5m2"),
    ],
)
def test_what_is_wrong_is_said_in_tensorflow_servings_words(
    body: object, of: Signature, message: str
) -> None:
    """Clients look into messages (SingleUnnamedTensorErrors, MultipleNamedTensorErrors)."""
    with pytest.raises(ServingError) as caught:
        read(body, of)
    assert message in caught.value.message


def test_a_long_value_is_shown_by_its_beginning() -> None:
    """An error is no place for a megabyte of the request."""
    with pytest.raises(InvalidArgument) as caught:
        read({"inputs": ["x" * 1_000_000]})
    assert len(caught.value.message) < 400


def test_every_dtype_is_read_alike_by_both_ways() -> None:
    """numpy's way and the walk, which `true` elsewhere leads to (MixedInputForDoubleTensor)."""
    for name in ("float32", "float64", "int8", "int64", "uint32", "float16"):
        values = [[1, 2.0], [3, 4]] if "float" in name else [[1, 2], [3, 4]]
        plain = read({"inputs": values}, signature(x=name))
        walked = read({"inputs": values, "note": True}, signature(x=name))
        assert plain == walked
    assert read({"inputs": []}, signature(x="int64"))["x"].dtype is INT64
    assert read({"inputs": []}, signature(x="string"))["x"].dtype is STRING


NUMBERS = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)
)
ROWS = st.lists(st.lists(NUMBERS, min_size=2, max_size=2), min_size=1, max_size=2)
BODIES = st.sampled_from(["instances", "inputs"]).flatmap(
    lambda key: ROWS.map(lambda rows: orjson.dumps({key: rows}))
)


def alone(bodies: Sequence[bytes], dtype: DType) -> list[PlainBody | None]:
    """Returns what each is by itself."""
    return [read_plain_json([body], dtype)[0] for body in bodies]


@given(
    st.lists(BODIES, min_size=1, max_size=4), st.sampled_from([FLOAT32, INT32, INT64])
)
def test_bodies_are_the_same_together_as_alone(
    bodies: list[bytes], dtype: DType
) -> None:
    """What comes together changes no element, whatever layouts and shapes it has."""
    assert list(read_plain_json(bodies, dtype)) == alone(bodies, dtype)


def test_an_integer_is_rounded_once() -> None:
    """A float that comes along makes no float64 of an integer that is to be float32."""
    rounded_twice = 2**60 + 2**36 + 1
    bodies = [b'{"instances":[[%d]]}' % rounded_twice, b'{"instances":[[0.5]]}']
    (_, (elements,)), _ = read_plain_json(bodies, FLOAT32)  # type: ignore[misc]
    assert elements == np.array([rounded_twice]).astype("<f4").tobytes()


@pytest.mark.parametrize(
    "other",
    [
        '{"instances":[[true,1]]}',
        '{"instances":[[false,1]]}',
        '{"in\\u0073tances":[[false,1]]}',
        '{"instances":[["1",2]]}',
        '{"instances":[[1,2]],"instances":[[3,4]]}',
        '{"instances":[[1,2]],"signature_name":"other"}',
        '{"instances":[[1,2]]},{"instances":[[1,2]]}',
        '{"instances":[[1,[2]]]}',
        '{"instances":[]}',
        '{"instances":null}',
        '{"instances":[[null,1]]}',
        "[[1,2]]",
        "7",
        "",
    ],
)
def test_what_is_more_or_wrong_is_left_and_spoils_no_other(other: str) -> None:
    """One that is none of these costs the others nothing."""
    plain = b'{"instances":[[1,2]]}'
    first, found, last = read_plain_json([plain, other.encode(), plain], FLOAT32)
    assert found is None
    elements = np.array([1, 2], "<f4").tobytes()
    assert first == last == ((Layout.ROWS, (1, 2)), (elements,))


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("name", ["float32", "float64", "int64", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(1,), (2,), (1, 4), (2, 1, 3), (1, 1, 1, 1)])
def test_replies_are_the_same_together_as_alone(
    name: str, shape: tuple[int, ...], layout: Layout
) -> None:
    """Each request gets its own rows, as if it had come by itself."""
    dtype, num_replies = DTYPES[name], 3
    array = np.arange(num_replies * np.prod(shape)).reshape(num_replies, *shape)
    views = [TensorView(dtype, shape, each.astype(name).tobytes()) for each in array]
    whole = TensorView(
        dtype,
        (num_replies * shape[0], *shape[1:]),
        array.astype(name).tobytes(),
    )
    together = write_plain_replies(whole, layout, shape[0], num_replies)
    assert together is not None
    expected = [write_predict_reply({"y": view}, layout) for view in views]
    assert [json.loads(each) for each in together] == [
        json.loads(each) for each in expected
    ]
    rows = [view.rows(0, shape[0]) for view in views]
    key = "predictions" if layout is Layout.ROWS else "outputs"
    if name != "complex64":
        assert [json.loads(each)[key] for each in together] == [
            np.frombuffer(bytes(row.buffer), name).reshape(shape).tolist()
            for row in rows
        ]


def test_what_is_not_finite_is_written_one_by_one() -> None:
    """JSON has no NaN; TensorFlow Serving writes one nevertheless."""
    view = TensorView(FLOAT32, (2,), np.array([1, np.nan], "<f4").tobytes())
    assert write_plain_replies(view, Layout.ROWS, 1, 2) is None
    assert write_predict_reply({"y": view}, Layout.ROWS) == b'{"predictions":[1.0,NaN]}'
