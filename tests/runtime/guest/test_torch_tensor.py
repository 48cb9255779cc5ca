from __future__ import annotations

import pytest
import torch

from tfs.core.dtype import COMPLEX128, DTYPES, FLOAT32, FLOAT64, STRING, DType
from tfs.core.tensor_view import TensorView
from tfs.runtime.guest.torch_tensor import (
    flatten,
    nest,
    small_view,
    to_torch,
    to_view,
)


@pytest.mark.parametrize(
    "dtype", [each for each in DTYPES.values() if each is not STRING], ids=str
)
def test_every_dtype_survives_the_round_trip(dtype: DType) -> None:
    """Bytes, dtype and shape come back as they went in."""
    data = bytes(index % 2 for index in range(6 * dtype.item_bytes))
    view = TensorView(dtype, (2, 3), data)
    tensor = to_torch(view)
    assert isinstance(tensor, torch.Tensor)
    assert tensor.shape == (2, 3)
    assert to_view(tensor) == view
    assert small_view(tensor) in (view, None)


@pytest.mark.parametrize("shape", [(0, 3), (), (1,)])
def test_empty_and_scalar_tensors_pass(shape: tuple[int, ...]) -> None:
    """No elements, or no dimensions, are ordinary shapes."""
    view = TensorView(FLOAT32, shape, bytes(4 if 0 not in shape else 0))
    tensor = to_torch(view)
    assert isinstance(tensor, torch.Tensor)
    assert to_view(tensor) == view


def test_views_that_are_not_dense_are_written_row_major() -> None:
    """Strides, conjugate and negative bits are resolved."""
    turned = torch.arange(6, dtype=torch.int32).view(2, 3).t()
    assert to_view(turned).data == turned.contiguous().numpy().tobytes()
    mirrored = torch.tensor([1 + 2j]).conj()
    assert to_view(mirrored).data == torch.tensor([1 - 2j]).numpy().tobytes()
    assert to_view(mirrored.imag).data == torch.tensor([-2.0]).numpy().tobytes()


def test_the_short_way_out_is_for_small_plain_tensors() -> None:
    """It says the same as the long one, or nothing."""
    plain = torch.arange(6, dtype=torch.float32).view(2, 3)
    mirrored = torch.tensor([1 + 2j]).conj()
    for tensor in (plain, plain.t(), plain[:, :0], plain.sum(), plain > 2):
        view = small_view(tensor)
        assert view == to_view(tensor)
        assert view is not None
        assert type(view.shape) is tuple
    for other in (
        mirrored,
        mirrored.imag,
        plain.to_sparse(),
        plain.bfloat16(),
        torch.zeros(20_000),
        torch.nn.Parameter(plain),
    ):
        assert small_view(other) is None


@pytest.mark.parametrize("num", [1, 50_000])
def test_the_tensor_owns_its_memory(num: int) -> None:
    """Writing to the tensor does not reach the view's buffer."""
    buffer = bytearray(4 * num)
    for data in (buffer, bytes(buffer), memoryview(buffer).toreadonly()):
        tensor = to_torch(TensorView(FLOAT32, (num,), data))
        assert isinstance(tensor, torch.Tensor)
        tensor.fill_(1)
        assert data == bytearray(4 * num)


def test_the_tensor_lies_in_memory_that_was_given_away() -> None:
    """An image is not copied to be computed with."""
    buffer = bytearray(200_000)
    tensor = to_torch(TensorView(FLOAT32, (50_000,), memoryview(buffer)))
    assert isinstance(tensor, torch.Tensor)
    tensor.view(torch.uint8).fill_(1)
    assert buffer == b"\1" * 200_000


@pytest.mark.parametrize("dtype", [FLOAT64, COMPLEX128], ids=str)
@pytest.mark.parametrize("offset", [0, 1, 8])
def test_memory_that_torch_cannot_read_there_is_copied(
    dtype: DType, offset: int
) -> None:
    """A tensor lies anywhere in its message; torch reads sixteen bytes of a complex128 at
    once, and ends the process where those are not aligned.
    """
    num = 100_000 // dtype.item_bytes
    buffer = bytearray(b"\1" * (offset + num * dtype.item_bytes))
    base = torch.frombuffer(buffer, dtype=torch.uint8).data_ptr()
    place = memoryview(buffer)[offset:]
    tensor = to_torch(TensorView(dtype, (num // 2, 2), place))
    assert isinstance(tensor, torch.Tensor)
    assert tensor.data_ptr() % 16 == 0
    assert (tensor.data_ptr() == base + offset) == ((base + offset) % 16 == 0)
    if dtype is FLOAT64:
        tensor = torch.view_as_complex(tensor)
    assert bool((tensor.clone() == tensor[0]).all())


@pytest.mark.parametrize(
    ("shape", "nested"),
    [
        ((), b"a"),
        ((2,), [b"a", b"b"]),
        ((2, 1), [[b"a"], [b"b"]]),
        ((1, 2), [[b"a", b"b"]]),
        ((2, 0), [[], []]),
    ],
)
def test_strings_nest_by_shape(shape: tuple[int, ...], nested: object) -> None:
    """A list per dimension, and flattening restores the tensor."""
    num = 1
    for size in shape:
        num *= size
    data = (b"a", b"b")[:num]
    assert nest(data, shape) == nested
    assert flatten(nested) == TensorView(STRING, shape, data)


def test_strings_that_are_ragged_or_no_strings_are_refused() -> None:
    """A model's list must be a tensor."""
    with pytest.raises(ValueError, match="ragged"):
        flatten([["a"], ["a", "b"]])
    with pytest.raises(TypeError, match="int"):
        flatten([1])


def test_numpys_bytes_are_whole_or_refused() -> None:
    """An element has its whole width; shorter ones do not say where they end."""
    numpy = pytest.importorskip("numpy")
    assert flatten(numpy.array([[b"ab\0"], [b"c\0\1"]][:1])).data == (b"ab\0",)
    assert flatten(numpy.array([b"ab\0"] * 2)).data == (b"ab\0", b"ab\0")
    assert flatten(numpy.array(b"ab\0")) == TensorView(STRING, (), (b"ab\0",))
    assert flatten(numpy.array([b"x\0", b"yz"])[:0]).shape == (0,)
    assert flatten(numpy.array(["a", "bcd"])).data == (b"a", b"bcd")
    for doubtful in ([b"ab\0", b"abcd"], [b"one", b"three"], [b""]):
        with pytest.raises(ValueError, match="return a list of bytes"):
            flatten(numpy.array(doubtful))
    with pytest.raises(ValueError, match="return a list of bytes"):
        flatten([numpy.array([b"one", b"three"])])


@pytest.mark.parametrize(
    "strings", [["a", "b"], [b"a", b"b"], ["a", b"b"], (b"a", "b")]
)
def test_strings_may_be_text_or_bytes(strings: object) -> None:
    """Strings of one kind, or of both kinds mixed, become bytes."""
    assert flatten(strings) == TensorView(STRING, (2,), (b"a", b"b"))
