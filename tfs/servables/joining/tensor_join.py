"""Joins the tensors of several requests into one, and takes one apart again.

These are pure functions on views. Two things are padded here: rows (by repeating one,
so that a model sees values it can compute with) and free inner dimensions (with a fill
value).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tfs.core.dtype import BFLOAT16, BOOL, STRING, DType
from tfs.core.errors import InvalidArgument
from tfs.core.signature import FREE, Signature
from tfs.core.tensor_view import TensorView, concatenate

_JOIN_S_PER_BYTE = 0.2e-9  # for memory that is in no cache

_FORMATS = {
    "float16": "<e",
    "float32": "<f",
    "float64": "<d",
    "int8": "<b",
    "int16": "<h",
    "int32": "<i",
    "int64": "<q",
    "uint8": "<B",
    "uint16": "<H",
    "uint32": "<I",
    "uint64": "<Q",
}


def element(dtype: DType, value: float) -> bytes:
    """Returns one element as it lies in a buffer; an empty one for strings.

    Raises:
        InvalidArgument: The type does not hold the value.

    """
    if dtype is STRING:
        return b""
    if dtype is BOOL:
        return b"\x01" if value else b"\x00"
    if not value:
        return bytes(dtype.item_bytes)
    if dtype is BFLOAT16:
        return struct.pack("<f", value)[2:]
    code = _FORMATS.get(dtype.name)
    if code is not None:
        try:
            if code in "<e<f<d":
                return struct.pack(code, value)
            if value == int(value):
                return struct.pack(code, int(value))
        except (struct.error, OverflowError):
            pass
    raise InvalidArgument(f"{dtype} does not hold the pad value {value}")


def join_rows(views: Sequence[TensorView], num_rows: int) -> TensorView:
    """Concatenates views and repeats the first row until there are ``num_rows``.

    It copies once. A single view that already has the rows is returned unchanged.

    Raises:
        ValueError: The views do not fit together.

    """
    missing = num_rows - sum(view.shape[0] for view in views)
    if missing > 0:
        views = [*views, *[views[0].rows(0, 1)] * missing]
    return concatenate(views)


def is_shared(signature: Signature, name: str, view: TensorView) -> bool:
    """Tells whether an input stands for every row of a batch, whatever their number.

    A default does, if the input was left out, and so does a single row that was sent
    instead; models have to broadcast it. Several rows count as ordinary rows, and a
    mask belongs to the rows that it came with.
    """
    default = signature.defaults.get(name)
    if default is None:
        return False
    if view is default:
        return True
    shape = signature.inputs[name].shape
    if shape and shape[0] == FREE and view.shape[0] != 1:
        return False
    return all(spec.mask != name for spec in signature.inputs.values())


def joined_row_bytes(signature: Signature) -> int:
    """Returns how many bytes joining copies for a row; inputs of free sizes count 0."""
    return sum(
        math.prod(spec.shape[1:]) * spec.dtype.item_bytes
        for name, spec in signature.inputs.items()
        if name not in signature.defaults and FREE not in spec.shape[1:]
    )


def with_joining(
    call_s_by_rows: Mapping[int, float], signature: Signature
) -> Mapping[int, float]:
    """Returns the seconds of batches, by rows, including the time for joining requests.

    A batch of several requests is copied into one tensor. For large rows and a quick
    model that takes longer than it saves. Rows of free sizes are not counted.

    Fewer rows never count for more than a call with more rows took. Only a few calls of
    each size were measured. Beside other programs, one row of a quick model took three
    times as long as 32, so that images were joined after every other start.
    """
    row_bytes = joined_row_bytes(signature)
    joined: dict[int, float] = {}
    least_s = math.inf
    for rows in sorted(call_s_by_rows, reverse=True):
        least_s = min(least_s, call_s_by_rows[rows])
        join_s = rows * row_bytes * _JOIN_S_PER_BYTE if rows > 1 else 0.0
        joined[rows] = least_s + join_s
    return joined


def largest_inner(views: Sequence[TensorView]) -> tuple[int, ...]:
    """Returns the largest size of each inner dimension; ranks are equal."""
    return tuple(map(max, zip(*(view.shape[1:] for view in views), strict=True)))


def fill_inner(
    view: TensorView, inner: tuple[int, ...], filler: bytes | None
) -> TensorView:
    """Returns ``view`` with its inner dimensions filled up to ``inner``.

    Args:
        view: A tensor of at least one dimension, none of the inner ones larger than
            ``inner``.
        inner: The sizes wanted.
        filler: One element; None means the view's own first element.

    Raises:
        InvalidArgument: There is no first element to fill with.

    """
    if view.shape[1:] == inner:
        return view
    if filler is None:
        if not view.data:
            raise InvalidArgument(
                "Got empty tensor in batch of non-empty tensors: "
                f"{list(view.shape)} has no first element to pad with; give its input "
                "a pad value in the signature"
            )
        if view.dtype is STRING:
            filler = view.strings[0]
        else:
            filler = bytes(view.buffer[: view.dtype.item_bytes])
    array = _array_of(view)
    filled = np.empty((view.shape[0], *inner), array.dtype)
    filled[...] = filler if view.dtype is STRING else np.void(filler)
    filled[tuple(map(slice, view.shape))] = array
    return _view_of(view.dtype, filled)


def cut_inner(view: TensorView, inner: tuple[int, ...]) -> TensorView:
    """Returns the first elements of each inner dimension, ``inner`` of them."""
    if view.shape[1:] == inner:
        return view
    return _view_of(view.dtype, _array_of(view)[:, *map(slice, inner)])


def _array_of(view: TensorView) -> npt.NDArray[Any]:
    """Returns a view's elements as opaque ones, of any type."""
    if view.dtype is STRING:
        strings = np.empty(len(view.data), dtype=object)
        strings[:] = view.data
        return strings.reshape(view.shape)
    opaque = np.dtype((np.void, view.dtype.item_bytes))
    return np.ndarray(view.shape, opaque, view.buffer)


def _view_of(dtype: DType, array: npt.NDArray[Any]) -> TensorView:
    data = tuple(array.flat) if dtype is STRING else array.tobytes()
    return TensorView(dtype, array.shape, data)


def mask_of(
    views: Sequence[TensorView], inner: tuple[int, ...], dtype: DType, rank: int
) -> TensorView:
    """Returns 1 where ``views`` have values and 0 where they are filled to ``inner``.

    Args:
        views: The views before they were filled, in the order in which they are joined.
        inner: The sizes to which they are filled.
        dtype: The mask's element type.
        rank: The mask's rank: its dimensions are the first of the joined tensor's.

    """
    one = element(dtype, 1.0)
    zero = element(dtype, 0.0)
    inner = inner[: rank - 1]
    masks = []
    for view in views:
        shape = view.shape[:rank]
        ones = TensorView(dtype, shape, one * math.prod(shape))
        masks.append(fill_inner(ones, inner, zero))
    return concatenate(masks)
