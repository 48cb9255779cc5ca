"""Tensors over borrowed buffers."""

from __future__ import annotations

import array
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tensors import floats
from tfs.core.dtype import BOOL, FLOAT32, INT64, STRING, UINT8
from tfs.core.tensor_view import Buffer, TensorView, concatenate


def test_a_view_knows_its_sizes() -> None:
    """Elements, bytes and rows follow from shape and dtype."""
    view = floats((2, 3), *range(6))
    assert (view.num_elements, view.size_bytes, view.num_rows) == (6, 24, 2)
    scalar = TensorView(INT64, (), bytes(8))
    assert (scalar.num_elements, scalar.size_bytes, scalar.num_rows) == (1, 8, 1)
    strings = TensorView(STRING, (2,), (b"ab", b"cde"))
    assert (strings.num_elements, strings.size_bytes) == (2, 5)
    empty = TensorView(FLOAT32, (0, 4), b"")
    assert (empty.num_elements, empty.size_bytes, empty.num_rows) == (0, 0, 0)
    assert repr(view) == "TensorView(float32 [2, 3])"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_byte_buffer_will_do(kind: type) -> None:
    """Bytes, byte arrays and byte views hold the same tensor."""
    view = TensorView.checked(UINT8, (3,), kind(b"abc"))
    assert view == TensorView(UINT8, (3,), b"abc")


@pytest.mark.parametrize(
    ("dtype", "shape", "data"),
    [
        (FLOAT32, (2,), bytes(7)),
        (FLOAT32, (2,), bytes(12)),
        (FLOAT32, (-1,), b""),
        (FLOAT32, (), b""),
        (FLOAT32, (1,), (b"abcd",)),
        (STRING, (1,), b"abcd"),
        (STRING, (2,), (b"a",)),
        (FLOAT32, (1,), memoryview(array.array("f", [1.0, 2, 3, 4]))),
        (UINT8, (2,), memoryview(b"abcd")[::2]),
    ],
)
def test_data_that_does_not_fit_is_refused(
    dtype: object, shape: tuple[int, ...], data: bytes
) -> None:
    """What comes from outside is checked: length, sign, kind of buffer."""
    with pytest.raises(ValueError, match=r"."):
        TensorView.checked(dtype, shape, data)  # type: ignore[arg-type]


def test_elements_are_a_buffer_or_strings_never_both() -> None:
    """Whoever asks for the other kind made a mistake, and is told so."""
    numbers = TensorView.checked(FLOAT32, (1,), bytes(4))
    strings = TensorView.checked(STRING, (2,), (b"a", b""))
    assert numbers.buffer == bytes(4)
    assert strings.strings == (b"a", b"")
    with pytest.raises(TypeError, match="no buffer"):
        _ = strings.buffer
    with pytest.raises(TypeError, match="no strings"):
        _ = numbers.strings


def test_rows_are_a_window_not_a_copy() -> None:
    """Slicing rows shares the buffer."""
    buffer = bytearray(floats((6,), *range(6)).data)  # type: ignore[arg-type]
    view = TensorView(FLOAT32, (3, 2), buffer)
    window = view.rows(1, 3)
    assert window == floats((2, 2), 2, 3, 4, 5)
    buffer[8:12] = struct.pack("<f", 9.0)
    assert window == floats((2, 2), 9, 3, 4, 5)
    assert view.rows(1, 1).shape == (0, 2)


def test_rows_of_strings_are_whole_rows() -> None:
    """Strings slice by row as numbers do."""
    view = TensorView(STRING, (2, 2), (b"a", b"b", b"c", b"d"))
    assert view.rows(1, 2) == TensorView(STRING, (1, 2), (b"c", b"d"))


def test_equality_is_by_dtype_shape_and_bytes() -> None:
    """NaN equals itself, and the same bytes under another shape are another tensor."""
    nan = floats((1,), float("nan"))
    assert nan == floats((1,), float("nan"))
    assert floats((2,), 1, 2) != floats((1, 2), 1, 2)
    assert TensorView(BOOL, (1,), b"\x01") != TensorView(UINT8, (1,), b"\x01")
    assert floats((1,), 1) != "a tensor"
    with pytest.raises(TypeError):
        hash(nan)


def test_concatenating_one_view_copies_nothing() -> None:
    """A batch of one task costs nothing."""
    view = floats((2,), 1, 2)
    assert concatenate([view]) is view


def test_what_was_given_away_can_be_kept_back() -> None:
    """Who still needs the elements takes away the leave to write to them."""
    given = memoryview(bytearray(b"abc"))
    kept = TensorView(UINT8, (3,), given).read_only()
    assert isinstance(kept.data, memoryview)
    assert kept.data.readonly
    for data in (b"abc", kept.data, (b"abc",)):
        view = TensorView(UINT8, (3,), data)
        assert view.read_only() is view


def test_a_large_joined_tensor_is_given_away() -> None:
    """It was made for one batch: its model need not copy it again."""
    views = [TensorView(UINT8, (1, 65_536), bytes([n]) * 65_536) for n in range(2)]
    joined = concatenate(views)
    assert isinstance(joined.data, memoryview)
    assert not joined.data.readonly
    assert [joined.rows(n, n + 1) for n in range(2)] == views


@pytest.mark.parametrize(
    "views",
    [
        [],
        [floats((1,), 1), TensorView(UINT8, (1,), b"a")],
        [floats((1, 2), 1, 2), floats((1,), 1)],
        [TensorView(FLOAT32, (), bytes(4)), floats((1,), 1)],
    ],
)
def test_what_does_not_join_is_refused(views: list[TensorView]) -> None:
    """Dtypes and inner shapes agree, and scalars have no rows."""
    with pytest.raises(ValueError, match=r"concatenate"):
        concatenate(views)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.booleans())
def test_splitting_undoes_joining(rows: list[int], strings: bool) -> None:
    """Each part comes back out of the joined tensor, in its place."""
    views = []
    for part, num in enumerate(rows):
        if strings:
            data = tuple(b"%d/%d" % (part, i) for i in range(2 * num))
            views.append(TensorView(STRING, (num, 2), data))
        else:
            views.append(TensorView(UINT8, (num, 2), bytes([part]) * (2 * num)))
    joined = concatenate(views)
    assert joined.num_rows == sum(rows)
    start = 0
    for view in views:
        assert joined.rows(start, start + view.num_rows) == view
        start += view.num_rows


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_view_of_its_own_does_not_change_with_the_buffer(
    kind: Callable[[bytearray], Buffer],
) -> None:
    """Whoever gave the buffer may write to it, or end it, as soon as he has answered."""
    buffer = bytearray(b"abcd")
    own = TensorView(UINT8, (4,), kind(buffer)).owned()
    buffer[:] = b"wxyz"
    assert own.data == b"abcd"
    strings = TensorView(STRING, (1,), (b"a",))
    assert strings.owned() is strings
