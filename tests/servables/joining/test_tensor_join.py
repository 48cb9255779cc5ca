"""Joining tensors of several requests, and filling what is missing."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batching.cost_table import CostTable
from tests.servables.joining.batched_sums import (
    UNPROVEN,
    BatchedSums,
    Sums,
    options_of,
    signature_of,
)
from tests.tensors import floats, strings
from tfs.core.dtype import (
    BFLOAT16,
    BOOL,
    DTYPES,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    STRING,
    UINT8,
    DType,
)
from tfs.core.errors import InvalidArgument
from tfs.core.signature import DEFAULT_SIGNATURE, Method, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.core.version.model_profile import SignatureProfile
from tfs.servables.joining.tensor_join import (
    JoinKeys,
    element,
    fill_inner,
    join_rows,
    largest_inner,
    with_joining,
)


def test_a_view_that_is_the_batch_is_not_copied() -> None:
    """One request that fills the batch goes through as it came."""
    view = floats((2, 1), 1, 2)
    assert join_rows([view], 2) is view


def test_strings_are_joined_like_numbers() -> None:
    """Rows of strings are joined in the order of their requests, too."""
    joined = join_rows([strings((1,), b"a"), strings((1,), b"b")], 3)
    assert joined == strings((3,), b"a", b"b", b"a")


def test_the_largest_inner_sizes_are_taken_per_dimension() -> None:
    """Each dimension of the joined tensor is as long as the longest
    (batching_util_test: CalculateMaxDimSizes).
    """
    views = [TensorView(UINT8, shape, bytes(60)) for shape in ((1, 2, 5), (9, 4, 3))]
    assert largest_inner(views) == (4, 5)


def test_inner_dimensions_are_filled_at_their_ends() -> None:
    """The filler comes after the elements, in each dimension (batching_util_test:
    AddPadding).
    """
    view = floats((2, 2), 1, 2, 3, 4)
    filler = element(FLOAT32, 9)
    assert fill_inner(view, (3,), filler) == floats((2, 3), 1, 2, 9, 3, 4, 9)
    deep = floats((1, 2, 2), 1, 2, 3, 4)
    assert fill_inner(deep, (3, 3), filler) == floats(
        (1, 3, 3), 1, 2, 9, 3, 4, 9, 9, 9, 9
    )
    assert fill_inner(view, (2,), filler) is view


def test_strings_are_filled_with_what_is_given() -> None:
    """Any element type can be ragged."""
    view = strings((2, 1), b"a", b"b")
    assert fill_inner(view, (2,), b"") == strings((2, 2), b"a", b"", b"b", b"")
    assert fill_inner(view, (2,), None) == strings((2, 2), b"a", b"a", b"b", b"a")


@pytest.mark.parametrize(
    "view", [floats((2, 0)), TensorView(STRING, (2, 0), ())], ids=str
)
def test_an_empty_tensor_has_nothing_to_fill_with(view: TensorView) -> None:
    """It is refused as in TensorFlow Serving, unless there is a pad value."""
    with pytest.raises(InvalidArgument, match="Got empty tensor"):
        fill_inner(view, (1,), None)


@given(
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=5),
)
def test_filling_any_rank_keeps_every_element(
    num_rows: int, sizes: list[tuple[int, int]]
) -> None:
    """Whatever the rank, values lie where they did and the rest is filler.

    batching_util_test: AddPaddingTensorWithUnsupportedRank does not apply: all ranks
    are supported.
    """
    inner = tuple(size for size, _ in sizes)
    wanted = tuple(size + more for size, more in sizes)
    numbers = TensorView(UINT8, (num_rows, *inner), b"\x01" * num_rows * _count(inner))
    filled = fill_inner(numbers, wanted, b"\x00")
    assert filled.shape == (num_rows, *wanted)
    assert len(filled.data) == num_rows * _count(wanted)
    assert sum(filled.data) == len(numbers.data)  # type: ignore[arg-type]
    texts = TensorView(STRING, numbers.shape, (b"x",) * len(numbers.data))
    same = fill_inner(texts, wanted, b"")
    flags = bytes(1 if text else 0 for text in same.data)
    assert flags == bytes(filled.data)  # type: ignore[arg-type]


def _count(sizes: tuple[int, ...]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


@pytest.mark.parametrize(
    ("dtype", "value", "form"),
    [
        (FLOAT32, 1.5, struct.pack("<f", 1.5)),
        (FLOAT64, -2.0, struct.pack("<d", -2)),
        (FLOAT16, 1.0, struct.pack("<e", 1)),
        (BFLOAT16, 1.0, b"\x80\x3f"),
        (INT32, -1, b"\xff\xff\xff\xff"),
        (UINT8, 255.0, b"\xff"),
        (BOOL, 1, b"\x01"),
        (STRING, 0, b""),
    ],
    ids=str,
)
def test_an_element_is_little_endian(dtype: DType, value: float, form: bytes) -> None:
    """Pad values are written as buffers hold them."""
    assert element(dtype, value) == form


def test_every_type_has_a_zero() -> None:
    """Every dtype can be padded with the usual filler."""
    for dtype in DTYPES.values():
        assert element(dtype, 0) == bytes(dtype.item_bytes)


@pytest.mark.parametrize(
    ("dtype", "value"), [(UINT8, 256), (INT32, 0.5), (DTYPES["complex64"], 1)]
)
def test_a_value_the_type_does_not_hold_is_refused(dtype: DType, value: float) -> None:
    """A wrong pad value shows when the version is loaded."""
    with pytest.raises(InvalidArgument, match="does not hold"):
        element(dtype, value)


def batch_rows(call_s: float, fixed_s: float, *inner: int) -> int | None:
    """Returns the best batch of a model whose call takes so long, and so long a row."""
    signature = Signature(
        Method.PREDICT,
        {"x": TensorSpec(FLOAT32, (-1, *inner))},
        {"y": TensorSpec(FLOAT32, (-1,))},
    )
    times = {rows: fixed_s + rows * call_s for rows in (1, 2, 4, 8)}
    return CostTable(with_joining(times, signature)).best_batch_rows()


def test_large_rows_are_joined_only_where_that_pays() -> None:
    """Copying 10 MB each takes longer than a quick model's call; an image's, not."""
    assert batch_rows(1e-6, 20e-6, 4) == 8
    assert batch_rows(1e-6, 20e-6, 2_621_440) == 1
    assert batch_rows(2e-3, 10e-3, 3, 224, 224) == 8
    assert batch_rows(1e-6, 20e-6, -1) == 8


def test_a_noisy_measurement_does_not_have_images_joined() -> None:
    """One row does not take longer than many did, whatever was measured of it."""
    signature = Signature(
        Method.PREDICT,
        {"x": TensorSpec(FLOAT32, (-1, 3, 224, 224))},
        {"y": TensorSpec(FLOAT32, (-1,))},
    )
    measured = {1: 216e-6, 2: 56e-6, 4: 85e-6, 8: 101e-6, 16: 50e-6, 32: 72e-6}
    assert CostTable(measured).best_batch_rows() == 32
    assert CostTable(with_joining(measured, signature)).best_batch_rows() == 1


SIGNATURE = Signature(
    Method.PREDICT,
    {
        "x": TensorSpec(FLOAT32, (-1, 3)),
        "tokens": TensorSpec(INT64, (-1, -1), pad=0),
        "t": TensorSpec(FLOAT32, (1,)),
        "words": TensorSpec(STRING, (2,)),
        "b": TensorSpec(BFLOAT16, (1,)),
        "n": TensorSpec(INT64, (8,)),
    },
    {"y": TensorSpec(FLOAT32, (-1,))},
    defaults={"t": TensorView(FLOAT32, (1,), bytes(4))},
)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (None, ""),
        (frozenset({("x", (3,))}), ""),
        (frozenset({("x", (3,)), ("tokens", (-1,))}), "tokens [any]"),
        (
            frozenset({("tokens", (512,)), ("t", None)}),
            "t left out, tokens [512]",
        ),
        (frozenset({("tokens", (7,))}), "tokens [7]"),
        (frozenset({("t", (1,), struct.pack("<f", 0.7))}), "t = 0.7"),
        (frozenset({("words", (2,), (b"ann", b"b\xff"))}), "words = ann b\ufffd"),
        (frozenset({("b", (1,), b"\x80\x3f")}), "b = 803f"),
        (frozenset({("n", (8,), struct.pack("<8q", *range(8)))}), "n = 0 1 2 3 ..."),
        (frozenset({("words", (2,), (b"w" * 90,))}), f"words = {'w' * 24}..."),
    ],
)
def test_a_queue_says_what_its_requests_have_in_common(key: object, words: str) -> None:
    """What all requests of a signature have in common is left out."""
    keys = JoinKeys(SIGNATURE, SignatureProfile(), options_of())
    assert keys.traits(key) == words


def test_queues_of_one_signature_tell_themselves_apart() -> None:
    """Two lines of `tfs status --batching` are never alike."""
    free = {"x": TensorSpec(FLOAT32, (-1, -1))}
    at = BatchedSums(Sums(signature_of(free)), UNPROVEN)
    at.submit({"x": floats((1, 2), 1, 2)})
    at.submit({"x": floats((1, 3), 1, 2, 3)})
    assert sorted(each.in_common for each in at.batched.report(DEFAULT_SIGNATURE)) == [
        "x [2]",
        "x [3]",
    ]
    at.step()
