"""Which requests can be joined, and how: their tensors are put together, and taken apart again.

Two things are padded here: rows (by repeating one, so that a model sees values it can
compute with) and free inner dimensions (with a fill value).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from batching.batching_options import BatchingOptions
from batching.length_window import LengthWindow
from tfs.core.dtype import BFLOAT16, BOOL, STRING, DType
from tfs.core.errors import InvalidArgument
from tfs.core.servable import InferenceTask
from tfs.core.signature import FREE, Signature, TensorSpec
from tfs.core.tensor_view import TensorView, concatenate
from tfs.core.version.model_profile import SignatureProfile

_JOIN_S_PER_BYTE = 0.2e-9  # for memory that is in no cache


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
    if dtype.code:
        try:
            if dtype.code in "efd":
                return struct.pack(f"<{dtype.code}", value)
            if value == int(value):
                return struct.pack(f"<{dtype.code}", int(value))
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


_ANY_LENGTH: Final = -1  # a size that requests need not have in common
_MAX_SHARED_BYTES: Final = 1024
"""Largest input, in bytes, that is no rows and with which requests are joined. Such
inputs are compared byte by byte."""

_MAX_VALUES: Final = 4
_MAX_CHARS: Final = 24


class JoinKeys:
    """Tells what must be equal for requests to be joined. Immutable, thread-safe.

    Attributes:
        fillers: By input, the value that fills up shorter rows; None means the row's own
            first element. Other inputs are not filled.
        padded_outputs: Outputs whose inner sizes depend on the batch.

    Args:
        signature: The signature that the requests ask for.
        measured: Whether padding it is safe.
        options: Buckets of lengths, and whether inputs without a pad value are padded.

    """

    def __init__(
        self,
        signature: Signature,
        measured: SignatureProfile,
        options: BatchingOptions,
    ) -> None:
        self._signature = signature
        self._buckets = options.length_buckets
        self._max_rows = options.queue.max_batch_rows
        self.fillers = _fillers_of(signature, measured, options.pads_variable_length)
        self.padded_outputs = frozenset(
            name
            for name, spec in signature.outputs.items()
            if self.fillers and _has_free_inner(spec)
        )
        # If the signature fixes all sizes, all requests fit together, and looking at
        # their shapes again would only cost time.
        self.is_uniform = not signature.defaults and not any(
            map(_has_free_inner, signature.inputs.values())
        )

    def of(self, task: InferenceTask) -> object:
        """Returns what must be equal for requests to be joined; False if they cannot be."""
        signature = self._signature
        if self.is_uniform and task.inputs.keys() == signature.inputs.keys():
            return None
        key: list[object] = []
        for name, view in task.inputs.items():
            if name not in signature.inputs:
                return False
            if view is signature.defaults.get(name):
                key.append((name, None))
            elif is_shared(signature, name, view):
                if view.size_bytes > _MAX_SHARED_BYTES:
                    return False
                key.append((name, view.shape, _bytes_of(view)))
            elif not view.shape or view.shape[0] != task.num_rows:
                return False
            elif name in self.fillers:
                sizes = self._rounded(name, view)
                key.append((name, tuple(size or _ANY_LENGTH for size in sizes)))
            elif name not in signature.defaults:
                key.append((name, view.shape[1:]))
            elif view.size_bytes > _MAX_SHARED_BYTES:
                return False
            else:
                # Nothing has shown that its rows may differ, because examples leave it
                # out.
                key.append((name, view.shape[1:], _row_of(view) or _bytes_of(view)))
        return frozenset(key)

    def least_sizes(self, task: InferenceTask) -> dict[str, tuple[int, ...]]:
        """Returns the inner sizes that inputs like a request's are padded to at least."""
        return {
            name: self._rounded(name, view)
            for name, view in task.inputs.items()
            if name in self.fillers
        }

    def _rounded(self, name: str, view: TensorView) -> tuple[int, ...]:
        """Returns the inner sizes; free ones rounded up to their bucket, 0 without one."""
        spec = self._signature.inputs[name]
        return tuple(
            size if wanted != FREE else next((b for b in self._buckets if b >= size), 0)
            for size, wanted in zip(view.shape[1:], spec.shape[1:], strict=True)
        )

    def window(self) -> LengthWindow | None:
        """Returns what chooses batches by length; None if they are alike, or in buckets.

        The length of a request is that of its first input that is padded.
        """
        if not self.fillers or self._buckets:
            return None
        first = next(iter(self.fillers))
        free = [
            axis
            for axis, size in enumerate(self._signature.inputs[first].shape)
            if axis and size == FREE
        ]

        def sizes_of(task: InferenceTask) -> tuple[int, ...]:
            view = task.inputs.get(first)
            return (1,) if view is None else tuple(view.shape[axis] for axis in free)

        return LengthWindow(sizes_of, self._max_rows)

    # -- in words ------------------------------------------------------------------

    def names(self, key: object) -> tuple[str, ...]:
        """Returns the inputs of requests with a key, in the signature's order."""
        if not isinstance(key, frozenset):
            return tuple(self._signature.inputs)
        sent = {part[0] for part in key}
        return tuple(name for name in self._signature.inputs if name in sent)

    def traits(self, key: object) -> str:
        """Returns in words what a key says; "" if it says nothing.

        Inputs of which all requests have the same are not named.
        """
        if not isinstance(key, frozenset):
            return ""
        return ", ".join(sorted(filter(None, self._traits(key))))

    def _traits(self, key: frozenset[object]) -> Iterator[str]:
        signature = self._signature
        for part in key:
            match part:
                case (str(name), None):
                    yield f"{name} left out"
                case (str(name), sizes, data) if isinstance(sizes, tuple):
                    yield f"{name} = {_values(signature.inputs[name].dtype, data)}"
                case (str(name), sizes) if isinstance(sizes, tuple):
                    spec = signature.inputs[name]
                    if _has_free_inner(spec) or name in signature.defaults:
                        yield f"{name} [{', '.join(map(_size, sizes))}]"


def _fillers_of(
    signature: Signature, measured: SignatureProfile, pads_variable_length: bool
) -> dict[str, bytes | None]:
    masks = {spec.mask for spec in signature.inputs.values() if spec.mask}
    fillers: dict[str, bytes | None] = {}
    for name, spec in signature.inputs.items():
        if not _has_free_inner(spec) or (
            name in signature.defaults and name not in masks
        ):
            continue
        if measured.why_padding and (spec.pad is not None or name in masks):
            continue  # then only requests of equal lengths are joined
        if spec.pad is not None:
            fillers[name] = element(spec.dtype, spec.pad)
        elif name in masks:
            fillers[name] = element(spec.dtype, 0)
        elif pads_variable_length:
            fillers[name] = None
    return fillers


def _has_free_inner(spec: TensorSpec) -> bool:
    return FREE in spec.shape[1:]


def _bytes_of(view: TensorView) -> bytes | tuple[bytes, ...]:
    """Returns the elements of a small tensor, for a comparison."""
    return view.data if isinstance(view.data, tuple) else bytes(view.data)


def _row_of(view: TensorView) -> bytes | tuple[bytes, ...] | None:
    """Returns the elements of one row of a small tensor; None if its rows differ."""
    num_rows = view.shape[0]
    data = _bytes_of(view)
    row = data[: len(data) // num_rows]
    return row if row * num_rows == data else None


def _size(size: int) -> str:
    return "any" if size == _ANY_LENGTH else str(size)


def _values(dtype: DType, data: object) -> str:
    values: Sequence[object]
    if isinstance(data, tuple):
        values = [bytes(each).decode(errors="replace") for each in data[:_MAX_VALUES]]
        num = len(data)
    else:
        assert isinstance(data, bytes)
        if not dtype.code:
            return _short(data.hex())
        num = len(data) // dtype.item_bytes
        kept = data[: _MAX_VALUES * dtype.item_bytes]
        values = struct.unpack(f"<{len(kept) // dtype.item_bytes}{dtype.code}", kept)
    texts = [f"{v:.6g}" if isinstance(v, float) else _short(str(v)) for v in values]
    return " ".join([*texts, "..."] if num > _MAX_VALUES else texts)


def _short(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}..."
