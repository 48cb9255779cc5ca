"""Reads a PredictRequest of the usual form, pointing into the message.

This is a strict reader of what serializers normally write: each known field once, map
entries with the key first, and packed numbers. It refuses everything else, whether
malformed or merely unusual, without saying why; message objects are used then
(tfs.codec.predict_request).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError

from tfs.codec.decode_options import MAX_FIELDS, DecodeOptions, FillBudget
from tfs.codec.model_spec import ModelSpec, read_model_spec
from tfs.codec.portions import read_strings
from tfs.codec.predict_template import Gap, remember
from tfs.codec.predict_view import PredictRequestView
from tfs.codec.tensor import (
    MANY_STRINGS,
    MAX_DIMENSIONS,
    STRING_BYTES,
    are_bools,
    check_empty,
    check_strings,
    count_elements,
    fill_elements,
    fill_strings,
    tensor_view_of,
    unpack,
)
from tfs.codec.wire import MalformedError, read_size, read_varint
from tfs.codec.wire_type import BY_DTYPE, BY_NUMBER
from tfs.core.dtype import BOOL, STRING
from tfs.core.errors import ServingError
from tfs.core.tensor_view import Buffer, TensorView
from tfs.proto.tensorflow.core.framework import tensor_pb2


class SlowError(Exception):
    """Decoding takes longer than the serving loop may spend."""


class _UnusualError(Exception):
    """The message has a form that the scan does not know."""


class _RefusedError(Exception):
    """The message is one that message objects would refuse too, but only after a long time."""

    def __init__(self, error: ServingError) -> None:
        super().__init__(error.message)
        self.error = error


_MAX_QUICK_FIELDS = 128

# Longer string tensors go to upb with the whole request: it walks strings in a third of
# the time. Unless they are so long that others would wait for it.
_MAX_SCANNED_STRING_BYTES = 256

_FIRST_LOOK: Final = 4096

# Values of one byte each are checked and widened eight times as fast as others.
_MAX_QUICK_PLAIN_BYTES: Final = 1 << 18

_CONTENT_TAG: Final = 0x22
_STRING_TAG: Final = 0x42

# The typed field's tag by DataType, its second byte in the high bits.
_TAG_BY_NUMBER: Final = {
    number: int.from_bytes(kind.typed_tag, "little")
    for number, kind in BY_NUMBER.items()
}
# What a packed field's length must be a multiple of, for raw fields.
_UNIT_BY_TAG: Final = {0x2A: 4, 0x32: 8, 0x4A: 4, 0x62: 8, 0x192: 1}

_Shape: TypeAlias = tuple[tuple[int, ...], int]
"""Sizes and their product."""

_SCALAR: Final[_Shape] = ((), 1)

# Shapes that recur. The cache is bounded, emptied when full, and written under the GIL;
# a lost entry costs one parse.
_MAX_SHAPES = 1024
_MAX_SHAPE_BYTES = 64
_shapes: dict[bytes, _Shape] = {}


def scan(
    message: Buffer,
    options: DecodeOptions,
    *,
    quick: bool,
    reserve: Callable[[int], None] | None = None,
) -> PredictRequestView | None:
    """Reads a request of the usual form; None leaves it to upb, errors included.

    Raises:
        SlowError: ``quick`` was asked for, but it would take long.
        ServingError: The request is one that upb would refuse too, after a long time.

    """
    try:
        return _scan_request(message, options, quick, reserve)
    except _RefusedError as refused:
        raise refused.error from None
    except (
        IndexError,  # cut off
        MalformedError,
        UnicodeDecodeError,
        _UnusualError,
        ServingError,
        DecodeError,
    ):
        return None


def _scan_request(
    message: Buffer,
    options: DecodeOptions,
    quick: bool,
    reserve: Callable[[int], None] | None,
) -> PredictRequestView:
    size = len(message)
    whole = memoryview(message)
    spec: ModelSpec | None = None
    inputs: dict[str, TensorView] = {}
    wanted: list[str] = []
    client_id: bytes | None = None
    gaps: list[Gap] = []
    budget = FillBudget(
        options.quick_fill_bytes if quick else options.max_tensor_bytes,
        reserve,
        options.max_fill_bytes,
    )
    index = 0
    while index < size:
        tag = message[index]
        length = message[index + 1]
        index += 2
        if length >= 0x80:
            length, index = read_size(message, index - 1)
        stop = index + length
        if stop > size:
            raise _UnusualError
        if tag == 0x12:
            # A map entry: 0A name 12 tensor.
            if message[index] != 0x0A:
                raise _UnusualError
            length = message[index + 1]
            index += 2
            if length >= 0x80:
                length, index = read_size(message, index - 1)
            name = str(whole[index : index + length], "utf-8")
            index += length
            if message[index] != 0x12 or name in inputs:
                raise _UnusualError
            length = message[index + 1]
            index += 2
            if length >= 0x80:
                length, index = read_size(message, index - 1)
            if index + length != stop:
                raise _UnusualError
            inputs[name] = _scan_tensor(
                message, whole, index, stop, name, gaps, options, budget, quick
            )
            if len(inputs) > _MAX_QUICK_FIELDS:
                _check_number(len(inputs), quick)
        elif tag == 0x0A:
            if spec is not None:
                raise _UnusualError
            spec = read_model_spec(bytes(whole[index:stop]))
        elif tag == 0x1A:
            wanted.append(str(whole[index:stop], "utf-8"))
            if len(wanted) > _MAX_QUICK_FIELDS:
                _check_number(len(wanted), quick)
        elif tag == 0x32 and client_id is None:
            client_id = bytes(whole[index:stop])
            gaps.append((index, stop, "", None, ()))
        else:
            raise _UnusualError
        index = stop
    view = PredictRequestView(
        spec, inputs, tuple(wanted), client_id, budget.taken_bytes
    )
    if inputs and len(gaps) == len(inputs) + (client_id is not None):
        remember(message, view, gaps)
    return view


def _check_number(number: int, quick: bool) -> None:
    if quick:
        raise SlowError
    if number > MAX_FIELDS:
        raise _UnusualError


def _scan_tensor(
    message: Buffer,
    whole: memoryview,
    first: int,
    stop: int,
    name: str,
    gaps: list[Gap],
    options: DecodeOptions,
    budget: FillBudget,
    quick: bool,
) -> TensorView:
    """Reads the TensorProto in ``message[first:stop]``.

    Adds to ``gaps`` if any other elements would have been accepted in their place.
    """
    number = -1
    shape_start = shape_stop = -1
    start = end = 0
    tag = -1
    index = first
    while index < stop:
        field = index
        this = message[index]
        length = message[index + 1]
        index += 2
        if this == 0x08:
            if number >= 0:
                raise _UnusualError
            number = length
            if length >= 0x80:
                number, index = read_varint(message, index - 1)
            continue
        if this >= 0x80:
            this |= length << 8
            length = message[index]
            index += 1
        if length >= 0x80:
            length, index = read_size(message, index - 1)
        if index + length > stop:
            raise _UnusualError
        if this == 0x12:
            if shape_start >= 0:
                raise _UnusualError
            shape_start = index
            shape_stop = index = index + length
        elif tag >= 0 and not this == tag == _STRING_TAG:
            raise _UnusualError
        else:
            if this == _STRING_TAG and stop - first > _MAX_SCANNED_STRING_BYTES:
                if stop - first <= options.quick_bytes:
                    raise _UnusualError
                if quick:
                    raise SlowError
                if BY_NUMBER.get(number) is not BY_DTYPE[STRING] or shape_start < 0:
                    raise _UnusualError
                return _long_strings(
                    message,
                    field,
                    stop,
                    stop - first,
                    _shape(bytes(whole[shape_start:shape_stop])),
                    name,
                    budget,
                )
            tag = this
            start = index
            end = index = index + length
    if index != stop:
        raise _UnusualError
    if shape_start < 0:
        shape, num_elements = _SCALAR
    else:
        shape, num_elements = _shape(bytes(whole[shape_start:shape_stop]))
    kind = BY_NUMBER.get(number)
    if kind is None:
        raise _UnusualError
    dtype = kind.dtype
    if num_elements == 0:
        check_empty(dtype, shape, budget)
    if tag == _CONTENT_TAG:
        if start == end or dtype is STRING:
            raise _UnusualError
        if num_elements == 0:
            return TensorView(dtype, shape, b"")
        if end - start != num_elements * dtype.item_bytes:
            raise _UnusualError
        if dtype is BOOL:
            if quick and end - start > _MAX_QUICK_PLAIN_BYTES:
                raise SlowError
            if not are_bools(whole[start:end]):
                raise _UnusualError
            return TensorView(dtype, shape, whole[start:end])
        gaps.append((start, end, name, dtype, shape))
        return TensorView(dtype, shape, whole[start:end])
    if tag >= 0 and tag != _TAG_BY_NUMBER[number]:
        raise _UnusualError
    packed = whole[start:end]
    payload: Buffer = packed
    if kind.is_raw:
        if tag < 0:
            payload = b""
        elif (end - start) % _UNIT_BY_TAG[tag]:
            raise _UnusualError
        elif end - start == num_elements * dtype.item_bytes:
            gaps.append((start, end, name, dtype, shape))
            return TensorView(dtype, shape, payload)
    else:
        if dtype is STRING:
            # Only known fields, once each: this part means the same on its own.
            part = bytes(whole[first:stop])
            return tensor_view_of(tensor_pb2.TensorProto.FromString(part), budget)
        if (
            quick
            and end - start > options.quick_bytes
            and (end - start > _MAX_QUICK_PLAIN_BYTES or not _is_ascii(packed))
        ):
            raise SlowError
        num_kept = min(num_elements, end - start)
        budget.widen(num_kept * dtype.item_bytes - (end - start))
        payload = unpack(kind, packed, num_elements)
    if num_elements == 0:
        return TensorView(dtype, shape, b"")
    return TensorView(
        dtype, shape, fill_elements(dtype, shape, num_elements, payload, budget)
    )


def _long_strings(
    message: Buffer,
    first: int,
    stop: int,
    num_bytes: int,
    shape: _Shape,
    name: str,
    budget: FillBudget,
) -> TensorView:
    """Reads strings that are the whole rest of a tensor of so many bytes."""
    sizes, num_elements = shape
    room = budget.limit_bytes - budget.num_bytes + num_bytes
    most = min(num_elements, max(MANY_STRINGS, room // STRING_BYTES) + 1)
    least = min(most, num_bytes // 2)  # a string takes two bytes at least
    if least > MANY_STRINGS:
        budget.expect(least * STRING_BYTES - num_bytes)
    values, num, end = read_strings(message, first, stop, _STRING_TAG, most)
    if end != stop:
        raise _UnusualError
    if num_elements == 0:
        check_empty(STRING, sizes, budget)
        return TensorView(STRING, sizes, ())
    try:
        check_strings(min(num, num_elements), num_bytes, budget)
        return TensorView(
            STRING, sizes, fill_strings(sizes, num_elements, tuple(values), budget)
        )
    except ServingError as error:
        raise _RefusedError(
            type(error)(f"tensor parsing error: {name}: {error.message}")
        ) from error


def _is_ascii(data: memoryview) -> bool:
    """Tells whether no byte has its highest bit set; other data mostly shows that early."""
    return bytes(data[:_FIRST_LOOK]).isascii() and bytes(data).isascii()


def _shape(message: bytes) -> _Shape:
    """Reads a TensorShapeProto that holds sizes only."""
    known = _shapes.get(message)
    if known is not None:
        return known
    sizes: list[int] = []
    index = 0
    stop = len(message)
    while index < stop:
        # A dimension: 12 length 08 size, or 12 00 for size 0.
        if message[index] != 0x12 or len(sizes) > MAX_DIMENSIONS:
            raise _UnusualError
        after = index + 2 + message[index + 1]
        if after == index + 2:
            size = 0
        elif message[index + 1] < 0x80 and message[index + 2] == 0x08:
            size, index = read_varint(message, index + 3)
            if index != after:
                raise _UnusualError
        else:
            raise _UnusualError
        sizes.append(size)
        index = after
    if index != stop:
        raise _UnusualError
    shape = tuple(sizes)
    # A negative size is beyond int64 here, and so an error here as well.
    read = (shape, count_elements(shape))
    if any(size >> 63 for size in sizes):
        raise _UnusualError
    if len(message) <= _MAX_SHAPE_BYTES:
        if len(_shapes) >= _MAX_SHAPES:
            _shapes.clear()
        _shapes[message] = read
    return read
