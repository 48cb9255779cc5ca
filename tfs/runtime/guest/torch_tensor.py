"""Converts between :class:`TensorView` and torch's tensors."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import torch

from tfs.core.dtype import COMPLEX128, DTYPES, FLOAT64, STRING, DType
from tfs.core.tensor_view import LARGE_BYTES, TensorView

Strings: TypeAlias = "bytes | list[Strings]"
"""A string tensor as models see it: bytes, nested in a list per dimension."""

TORCH_DTYPES: Final[dict[DType, torch.dtype]] = {
    each: getattr(torch, name) for name, each in DTYPES.items() if each is not STRING
}
DTYPE_OF: Final[dict[torch.dtype, DType]] = {
    theirs: ours for ours, theirs in TORCH_DTYPES.items()
}


def _is_numpys(dtype: torch.dtype) -> bool:
    try:
        torch.empty(0, dtype=dtype).numpy()
    except (RuntimeError, TypeError):  # it has no such type, or there is no numpy
        return False
    return True


_NUMPYS: Final[dict[torch.dtype, DType]] = {
    theirs: ours for theirs, ours in DTYPE_OF.items() if _is_numpys(theirs)
}
# The arrays that torch makes of tensors. Nothing else here needs numpy.
_array: Final[Callable[..., Any]] = type(torch.empty(0).numpy()) if _NUMPYS else object
_ARRAY_DTYPES: Final = {
    ours: torch.empty(0, dtype=theirs).numpy().dtype for theirs, ours in _NUMPYS.items()
}


# A tensor may begin anywhere in the message it came in. torch's own code reads that, but for
# complex128, whose elements it takes to be aligned, and float64 that are viewed as such:
# there the processor ends the process.
_ALIGNED: Final = frozenset((FLOAT64, COMPLEX128))
_ALIGNMENT: Final = 16


def to_torch(view: TensorView) -> torch.Tensor | Strings:
    """Returns a tensor that the model may keep and write to; strings as nested lists.

    It is a new copy, made once. If the view's memory is large, was given away (see
    :class:`~tfs.core.tensor_view.TensorView`) and is aligned as torch needs it, the
    tensor uses that memory instead.
    """
    data = view.data
    if isinstance(data, tuple):
        return nest(data, view.shape)
    shape = view.shape
    if len(data) < LARGE_BYTES:
        data = bytearray(data)
        dtype = _ARRAY_DTYPES.get(view.dtype)
        if dtype is not None and data and shape:
            # As tensor_over, for what most requests bring, in two thirds of the time. A
            # larger one's memory would not be known to be in use: arrays do not lock it.
            return torch.from_numpy(_array(shape, dtype, data))
    elif (
        not isinstance(data, memoryview)
        or data.readonly
        or (view.dtype in _ALIGNED and not _is_aligned(data))
    ):
        data = bytearray(data)
    return tensor_over(view.dtype, shape, data)


def _is_aligned(data: memoryview) -> bool:
    return ctypes.addressof(ctypes.c_char.from_buffer(data)) % _ALIGNMENT == 0


def tensor_over(dtype: DType, shape: tuple[int, ...], buffer: object) -> torch.Tensor:
    """Returns a tensor over a writable buffer, which lives as long as the tensor."""
    num_elements = math.prod(shape)
    if num_elements == 0:
        return torch.empty(shape, dtype=TORCH_DTYPES[dtype])
    flat = torch.frombuffer(buffer, dtype=TORCH_DTYPES[dtype], count=num_elements)
    return flat.view(shape)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the elements dense, row-major, on the CPU; copies only if they are not."""
    if not tensor.is_cpu:
        tensor = tensor.cpu()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_conj():
        tensor = tensor.resolve_conj()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    return tensor.contiguous()


def to_view(tensor: torch.Tensor) -> TensorView:
    """Returns a view over the tensor's elements, copied once into bytes."""
    dense = plain(tensor)
    data = ctypes.string_at(dense.data_ptr(), dense.nbytes)
    return TensorView(DTYPE_OF[tensor.dtype], tuple(tensor.shape), data)


def small_view(tensor: torch.Tensor) -> TensorView | None:
    """Like :func:`to_view`, but returns None for tensors that are large or not plain.

    For most tensors it needs two calls of torch instead of ten. That matters, because
    each of those is code that nothing else uses.
    """
    dtype = _NUMPYS.get(tensor.dtype)
    if dtype is None:
        return None
    try:
        # Before numpy sees it: what that has seen torch takes for memory that is not its
        # own, and would have to be copied.
        if tensor.nbytes >= LARGE_BYTES:
            return None
        elements = tensor.numpy()
    except (RuntimeError, TypeError):  # of a device, sparse, conjugated, ...
        return None
    return TensorView(dtype, elements.shape, elements.tobytes())


def nest(data: Sequence[bytes], shape: tuple[int, ...]) -> Strings:
    """Returns row-major strings nested by ``shape``: a list per dimension."""
    if not shape:
        return data[0]
    if len(shape) == 1:
        return list(data)
    per_row = math.prod(shape[1:])
    return [
        nest(data[row * per_row : (row + 1) * per_row], shape[1:])
        for row in range(shape[0])
    ]


def flatten(value: object) -> TensorView:
    """Returns nested lists of bytes or str, or an array of them, as a string tensor.

    Raises:
        TypeError: An item is neither a string nor a list.
        ValueError: The lists are ragged, or an array does not tell where its bytes end.

    """
    if isinstance(value, bytes):
        return TensorView(STRING, (), (value,))
    if isinstance(value, str):
        return TensorView(STRING, (), (value.encode(),))
    if not isinstance(value, list | tuple):
        listed = listed_strings(value)
        if not isinstance(listed, list | str | bytes):
            raise TypeError(f"strings expected, got {type(value).__name__}")
        return flatten(listed)
    # An object for each of a million strings takes seconds, and the collector as long.
    kinds = set(map(type, value))
    if kinds == {bytes}:
        return TensorView(STRING, (len(value),), tuple(value))
    if kinds == {str}:
        return TensorView(STRING, (len(value),), tuple([s.encode() for s in value]))
    parts = [flatten(item) for item in value]
    inner = parts[0].shape if parts else ()
    if any(part.shape != inner for part in parts):
        raise ValueError("ragged lists of strings")
    data = tuple(item for part in parts for item in part.data)
    return TensorView(STRING, (len(parts), *inner), data)  # type: ignore[arg-type]


def listed_strings(value: Any) -> Any:
    """Returns an array's elements as nested lists; a value that has none as it is.

    numpy's own lists of fixed-width bytes lack the zeros that an element ends in. Here
    elements have their whole width; text is as numpy reads it.

    Raises:
        ValueError: Bytes end in different places, or nowhere: then zeros may be theirs,
            or what numpy filled shorter ones up with.

    """
    dtype: Any = getattr(value, "dtype", None)
    if getattr(dtype, "kind", "") != "S":
        return getattr(value, "tolist", lambda: value)()
    width, elements = dtype.itemsize, value.tobytes()
    items = [elements[at : at + width] for at in range(0, len(elements), width or 1)]
    lengths = {len(item.rstrip(b"\0")) for item in items}
    if len(lengths) > 1 or lengths == {0}:
        raise ValueError(
            f"numpy's fixed-width bytes (S{width}) do not say whether shorter ones end in "
            "zeros: return a list of bytes, or an array of dtype object"
        )
    return nest(items, tuple(value.shape)) if items else value.tolist()
