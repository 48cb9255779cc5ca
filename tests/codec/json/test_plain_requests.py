"""Tests for reading plain requests in JSON that came together."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs.codec.json.predict_body import Layout, PlainBody, read_plain_json
from tfs.codec.json.tensor_writer import write_plain_replies, write_predict_reply
from tfs.core.dtype import DTYPES, FLOAT32, INT32, INT64, DType
from tfs.core.tensor_view import TensorView

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
