"""Converts between ``TensorProto`` and ``TensorView``, and says how each dtype travels there.

A TensorProto holds its elements either raw (``tensor_content``) or in the typed field
of its dtype. A packed typed field of a fixed-width type is raw, too; integers, booleans
and the half types are varints there. TensorFlow's rules apply: ``tensor_content``, if
it is not empty, must have exactly the right length. In a typed field the last value is
repeated for those that are missing (zeros if there is none), and surplus values are
ignored. A tensor without elements ignores its payload, and ``unknown_rank`` means
nothing, because what was sent has a shape.

Reading raises ``InvalidArgument`` or ``ResourceExhausted``. The message says what is
wrong but not with which tensor, because the caller knows its name.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Sequence
from typing import Final

from tfs.codec import wire
from tfs.codec.decode_options import FillBudget
from tfs.core import dtype as dtypes
from tfs.core.dtype import BOOL, STRING, DType
from tfs.core.errors import InvalidArgument
from tfs.core.tensor_view import Buffer, TensorView
from tfs.proto.tensorflow.core.framework import tensor_pb2, types_pb2


class WireType:
    """How a dtype travels. One instance per dtype. Immutable.

    Attributes:
        dtype: The element type.
        number: Its ``tensorflow.DataType``.
        field: Name of its typed field.
        field_number: Number of that field.
        is_raw: Whether the packed contents of that field are the elements' own bytes.
        code: The code of ``struct`` for elements that are not raw; empty for strings.

    """

    def __init__(
        self, dtype: DType, number: int, field: str, code: str, *, is_raw: bool
    ) -> None:
        self.dtype = dtype
        self.number = number
        self.field = field
        self.field_number: int = tensor_pb2.TensorProto.DESCRIPTOR.fields_by_name[
            field
        ].number
        self.is_raw = is_raw
        self.code = code
        self.typed_tag = wire.tag(self.field_number, wire.DELIMITED)
        self.content_tag = wire.tag(_CONTENT_FIELD, wire.DELIMITED)


_CONTENT_FIELD: Final = 4

_RAW = (
    (dtypes.FLOAT32, types_pb2.DT_FLOAT, "float_val"),
    (dtypes.FLOAT64, types_pb2.DT_DOUBLE, "double_val"),
    (dtypes.COMPLEX64, types_pb2.DT_COMPLEX64, "scomplex_val"),
    (dtypes.COMPLEX128, types_pb2.DT_COMPLEX128, "dcomplex_val"),
    (dtypes.FLOAT8_E5M2, types_pb2.DT_FLOAT8_E5M2, "float8_val"),
    (dtypes.FLOAT8_E4M3FN, types_pb2.DT_FLOAT8_E4M3FN, "float8_val"),
    (dtypes.FLOAT8_E4M3FNUZ, types_pb2.DT_FLOAT8_E4M3FNUZ, "float8_val"),
    (dtypes.FLOAT8_E5M2FNUZ, types_pb2.DT_FLOAT8_E5M2FNUZ, "float8_val"),
)
_VARINT = (
    (dtypes.INT8, types_pb2.DT_INT8, "int_val", "b"),
    (dtypes.INT16, types_pb2.DT_INT16, "int_val", "h"),
    (dtypes.INT32, types_pb2.DT_INT32, "int_val", "i"),
    (dtypes.INT64, types_pb2.DT_INT64, "int64_val", "q"),
    (dtypes.UINT8, types_pb2.DT_UINT8, "int_val", "B"),
    (dtypes.UINT16, types_pb2.DT_UINT16, "int_val", "H"),
    (dtypes.UINT32, types_pb2.DT_UINT32, "uint32_val", "I"),
    (dtypes.UINT64, types_pb2.DT_UINT64, "uint64_val", "Q"),
    (dtypes.BOOL, types_pb2.DT_BOOL, "bool_val", "?"),
    # The bit pattern in the low 16 bits.
    (dtypes.FLOAT16, types_pb2.DT_HALF, "half_val", "H"),
    (dtypes.BFLOAT16, types_pb2.DT_BFLOAT16, "half_val", "H"),
)

BY_DTYPE: Final[dict[DType, WireType]] = {
    STRING: WireType(STRING, types_pb2.DT_STRING, "string_val", "", is_raw=False),
    **{d: WireType(d, n, field, "", is_raw=True) for d, n, field in _RAW},
    **{d: WireType(d, n, field, code, is_raw=False) for d, n, field, code in _VARINT},
}
BY_NUMBER: Final[dict[int, WireType]] = {
    each.number: each for each in BY_DTYPE.values()
}


def wire_type(number: int) -> WireType:
    """Returns how the ``tensorflow.DataType`` travels.

    Raises:
        InvalidArgument: It is not one that is served; names it.

    """
    try:
        return BY_NUMBER[number]
    except KeyError:
        try:
            name = types_pb2.DataType.Name(number)
        except ValueError:
            name = str(number)
        raise InvalidArgument(f"dtype {name} is not supported") from None


MAX_DIMENSIONS: Final = 254
"""Most dimensions of a tensor: TensorFlow's limit."""

_MAX_ELEMENTS: Final = (1 << 63) - 1
_PORTION: Final = 16_384
_BOOL_PORTION: Final = 1 << 18
_TILE_BYTES: Final = 1 << 16
_LARGE_BYTES: Final = 1 << 20

QUICK_VALUES: Final = 4_096
"""So many values can be written one by one within half a millisecond: protobuf takes up to
0.1 us for each, and keeps Python's lock until it is done."""

_QUICK_STRING_BYTES: Final = 1 << 18
_LONG_STRING_BYTES: Final = 256  # longer ones are copied once rather than by upb, twice

MANY_STRINGS: Final = 16_384
"""For up to so many strings, the memory of their objects does not matter."""

STRING_BYTES: Final = 48
"""The least number of bytes that the object of a short string takes."""


def count_elements(shape: Sequence[int]) -> int:
    """Returns the product of the sizes of a tensor that was sent.

    Raises:
        InvalidArgument: There are too many dimensions, a negative one, or a product
            beyond 2**63 - 1 (as in TensorFlow, also of the leading dimensions alone).

    """
    if len(shape) > MAX_DIMENSIONS:
        raise InvalidArgument(
            f"more than {MAX_DIMENSIONS} dimensions in the tensor's shape"
        )
    num_elements = 1
    for size in shape:
        if size < 0:
            raise InvalidArgument(f"negative dimension in shape {list(shape)}")
        num_elements *= size
        if num_elements > _MAX_ELEMENTS:
            raise InvalidArgument(f"shape {list(shape)} has too many elements")
    return num_elements


def tensor_view_of(
    proto: tensor_pb2.TensorProto, budget: FillBudget | None = None
) -> TensorView:
    """Returns a view of the tensor; its elements are copied.

    Raises:
        InvalidArgument: The dtype is not served, the shape is bad, or the payload does
            not fit; says which, but not for which tensor.
        ResourceExhausted: The shape claims more elements than were sent, or rows
            without any, and filling them in would exceed the budget.

    """
    budget = budget or FillBudget()
    kind = wire_type(proto.dtype)
    dims = proto.tensor_shape.dim
    if len(dims) > MAX_DIMENSIONS:
        count_elements((0,) * len(dims))
    shape = tuple([dim.size for dim in dims])
    num_elements = count_elements(shape)
    if num_elements == 0:
        check_empty(kind.dtype, shape, budget)
        return TensorView(kind.dtype, shape, () if kind.dtype is STRING else b"")
    content = proto.tensor_content
    if kind.dtype is STRING:
        check_strings(
            min(num_elements, len(content) or len(proto.string_val)),
            len(content) or proto.ByteSize(),
            budget,
        )
    if content:
        return of_content(kind, shape, num_elements, content)
    if kind.dtype is STRING:
        values = tuple(proto.string_val[:num_elements])
        return TensorView(
            STRING, shape, fill_strings(shape, num_elements, values, budget)
        )
    if not kind.is_raw:  # numbers of one byte or more
        num_sent = len(getattr(proto, kind.field))
        budget.widen(min(num_elements, num_sent) * (kind.dtype.item_bytes - 1))
    data = fill_elements(
        kind.dtype, shape, num_elements, typed_payload(proto, kind), budget
    )
    return TensorView(kind.dtype, shape, data)


def check_empty(dtype: DType, shape: Sequence[int], budget: FillBudget) -> None:
    """Refuses rows without elements if there are too many.

    Nothing is sent for such rows, but models answer each of them all the same.

    Raises:
        ResourceExhausted: With one element each they would exceed the budget.

    """
    if shape[0]:  # without rows there is nothing to answer
        num_places = math.prod([size for size in shape if size])
        budget.take(
            num_places * (dtype.item_bytes or 8),
            f"shape {list(shape)}, with an element where it has none,",
        )


def of_content(
    kind: WireType, shape: tuple[int, ...], num_elements: int, content: Buffer
) -> TensorView:
    """Returns a view of a ``tensor_content``, borrowed if that is possible.

    Raises:
        InvalidArgument: The content's length does not fit, or booleans are not 0 or 1.

    """
    dtype = kind.dtype
    if dtype is STRING:
        return TensorView(STRING, shape, split_strings(content, num_elements))
    if len(content) != num_elements * dtype.item_bytes:
        raise InvalidArgument(
            f"tensor_content has {len(content)} bytes, {dtype} {list(shape)} takes "
            f"{num_elements * dtype.item_bytes}"
        )
    if dtype is BOOL and not are_bools(content):
        raise InvalidArgument(
            "tensor_content of bool holds a byte that is neither 0 nor 1"
        )
    return TensorView(dtype, shape, content)


def are_bools(data: Buffer) -> bool:
    """Whether every byte is 0 or 1; reading any other byte as a boolean is undefined.

    Other bytes in a ``tensor_content`` are refused, as by TensorFlow 2.21, because they
    are something else that was sent as booleans. In a typed field booleans are varints,
    and all but 0 are true.
    """
    if len(data) <= _BOOL_PORTION:
        return not bytes(data).translate(None, b"\0\1")
    whole = memoryview(data)  # in portions, between which other threads get a turn
    return all(
        are_bools(whole[start : start + _BOOL_PORTION])
        for start in range(0, len(data), _BOOL_PORTION)
    )


def fill_elements(
    dtype: DType,
    shape: tuple[int, ...],
    num_elements: int,
    payload: Buffer,
    budget: FillBudget,
) -> Buffer:
    """Returns exactly ``num_elements`` elements: cut, or with the last one repeated.

    If the payload fits, it is returned itself.

    Raises:
        ResourceExhausted: What has to be added exceeds the budget.

    """
    item_bytes = dtype.item_bytes
    num_bytes = num_elements * item_bytes
    num_sent = len(payload) // item_bytes
    if num_sent >= num_elements:
        return payload if len(payload) == num_bytes else payload[:num_bytes]
    budget.take(
        (num_elements - num_sent) * item_bytes,
        f"shape {list(shape)} with {num_sent} values sent",
    )
    if num_sent == 0:
        return bytes(num_bytes)
    end = num_sent * item_bytes
    last = bytes(payload[end - item_bytes : end])
    elements = _make_room(num_bytes)
    elements[:end] = payload[:end]
    tile = last * (_TILE_BYTES // item_bytes)
    for start in range(end, num_bytes, len(tile)):
        stop = min(start + len(tile), num_bytes)
        elements[start:stop] = tile[: stop - start]
    return elements


def _make_room(num_bytes: int) -> memoryview:
    """Returns memory for elements; large memory is taken only as it is written to."""
    if num_bytes <= _LARGE_BYTES:
        return memoryview(bytearray(num_bytes))
    return memoryview(mmap.mmap(-1, num_bytes))


def fill_strings(
    shape: tuple[int, ...],
    num_elements: int,
    values: tuple[bytes, ...],
    budget: FillBudget,
) -> tuple[bytes, ...]:
    """Returns exactly ``num_elements`` strings: cut, or the last one repeated.

    Raises:
        ResourceExhausted: What has to be added exceeds the budget.

    """
    missing = num_elements - len(values)
    if missing <= 0:
        return values[:num_elements]
    budget.take(missing * 8, f"shape {list(shape)} with {len(values)} strings sent")
    return values + (values[-1:] or (b"",)) * missing


def is_quickly_written(data: Buffer | tuple[bytes, ...], item_bytes: int) -> bool:
    """Tells whether :func:`typed_parts` is quick enough for the serving loop.

    Args:
        data: The elements.
        item_bytes: Bytes of one element; any number for strings.

    """
    if isinstance(data, tuple):
        return len(data) <= QUICK_VALUES and sum(map(len, data)) <= _QUICK_STRING_BYTES
    return len(data) <= QUICK_VALUES * item_bytes


def typed_parts(kind: WireType, data: Buffer | tuple[bytes, ...]) -> list[bytes]:
    """Returns the typed field of these elements, tag and length included, in parts.

    Returns nothing if there are no elements. This is for elements that are not raw; raw
    fields need no function. If there are many, they are written a portion at a time, so
    that other threads get a turn.
    """
    if isinstance(data, tuple):
        return _string_parts(data)
    if not data:
        return []
    size = QUICK_VALUES * kind.dtype.item_bytes
    if len(data) <= size:
        packed = [_pack_portion(kind, data)]
    else:
        whole = memoryview(data)
        starts = range(0, len(data), size)
        packed = [_pack_portion(kind, whole[start : start + size]) for start in starts]
    return [kind.typed_tag + wire.varint(sum(map(len, packed))), *packed]


def _pack_portion(kind: WireType, data: Buffer) -> bytes:
    """Returns elements as packed varints, without tag and length."""
    item_bytes = kind.dtype.item_bytes
    low = bytes(data[::item_bytes])
    if kind.dtype is BOOL:
        return _as_bools(low)
    if low.isascii() and (item_bytes == 1 or _widened(low, item_bytes) == data):
        return low
    message = tensor_pb2.TensorProto()
    getattr(message, kind.field).extend(struct.unpack(f"<{len(low)}{kind.code}", data))
    field = message.SerializeToString()
    _, start = wire.read_size(field, len(kind.typed_tag))
    return field[start:]


def _string_parts(strings: tuple[bytes, ...]) -> list[bytes]:
    parts: list[bytes] = []
    for start in range(0, len(strings), QUICK_VALUES):
        portion = strings[start : start + QUICK_VALUES]
        if sum(map(len, portion)) <= _LONG_STRING_BYTES * len(portion):
            message = tensor_pb2.TensorProto(string_val=portion)
            parts.append(message.SerializeToString())
            continue
        tag = BY_DTYPE[STRING].typed_tag
        for each in portion:
            parts += (tag + wire.varint(len(each)), each)
    return parts


def shape_field(shape: tuple[int, ...]) -> bytes:
    """Returns the ``tensor_shape`` field, present also for a scalar."""
    dims = b"".join(
        [
            wire.delimited(2, b"\x08" + wire.varint(size) if size else b"")
            for size in shape
        ]
    )
    return wire.delimited(2, dims)


def raw_head(
    kind: WireType, shape: tuple[int, ...], *, as_tensor_content: bool
) -> bytes | None:
    """Returns the bytes of a serialized tensor before its elements; None if those are not raw.

    Followed by the elements, they are the complete tensor.
    """
    if kind.dtype is STRING or not (kind.is_raw or as_tensor_content):
        return None
    head = b"\x08" + wire.varint(kind.number) + shape_field(shape)
    num_bytes = math.prod(shape) * kind.dtype.item_bytes
    if num_bytes == 0:
        return head
    tag = kind.content_tag if as_tensor_content else kind.typed_tag
    return head + tag + wire.varint(num_bytes)


def write_tensor(view: TensorView, *, as_tensor_content: bool = False) -> bytes:
    """Returns the serialized ``TensorProto`` of the tensor.

    Elements go into the typed field, or into ``tensor_content``; strings always into
    ``string_val``, because Python clients read no strings from ``tensor_content``.
    """
    kind = BY_DTYPE[view.dtype]
    head = raw_head(kind, view.shape, as_tensor_content=as_tensor_content)
    if head is not None:
        return b"".join((head, view.data))  # type: ignore[arg-type]  # no strings here
    head = b"\x08" + wire.varint(kind.number) + shape_field(view.shape)
    return b"".join((head, *typed_parts(kind, view.data)))


def fill_tensor_proto(
    proto: tensor_pb2.TensorProto, view: TensorView, *, as_tensor_content: bool = False
) -> None:
    """Writes the tensor into an empty message; see :func:`write_tensor`."""
    proto.MergeFromString(write_tensor(view, as_tensor_content=as_tensor_content))


def check_strings(num: int, num_bytes: int, budget: FillBudget) -> None:
    """Refuses strings that would take far more as objects than they took on the wire.

    Raises:
        ResourceExhausted: They exceed the budget.

    """
    if num > MANY_STRINGS:
        budget.take_objects(
            max(0, num * STRING_BYTES - num_bytes), f"to tell {num} strings apart"
        )


def typed_payload(proto: tensor_pb2.TensorProto, kind: WireType) -> bytes:
    """Returns the elements in the tensor's typed field as raw bytes."""
    values = getattr(proto, kind.field)
    if kind.field == "float8_val":
        return bytes(values)
    if kind.is_raw:
        # Not through Python floats: they would quieten signalling NaNs, and be slow.
        packed = proto.SerializeToString()
        for number, wire_kind, start, stop in wire.fields(packed, 0, len(packed)):
            if number == kind.field_number and wire_kind == wire.DELIMITED:
                return packed[start:stop]
        return b""
    if len(values) <= _PORTION:
        return _packed(kind, values[:])
    # In portions: other threads get a turn between them, and objects for millions of
    # numbers take forty times what the numbers take.
    return b"".join(
        [
            _packed(kind, values[start : start + _PORTION])
            for start in range(0, len(values), _PORTION)
        ]
    )


def _packed(kind: WireType, numbers: Sequence[int]) -> bytes:
    """Returns numbers of a typed field of varints as raw elements."""
    if kind.dtype is BOOL:
        return bytes(numbers)
    try:
        return struct.pack(f"<{len(numbers)}{kind.code}", *numbers)
    except struct.error:  # narrower than int32: keep the low bits, as TensorFlow does
        mask = (1 << 8 * kind.dtype.item_bytes) - 1
        code = kind.code.upper()
        return struct.pack(
            f"<{len(numbers)}{code}", *[number & mask for number in numbers]
        )


def split_strings(content: Buffer, num_elements: int) -> tuple[bytes, ...]:
    """Reads strings in ``tensor_content``: all lengths as varints, then all bytes.

    Raises:
        InvalidArgument: It holds something else, or another number of strings.

    """
    if num_elements > len(content):
        raise InvalidArgument("tensor_content is too short for its strings")
    content = bytes(content)
    sizes = []
    index = 0
    try:
        for _ in range(num_elements):
            size, index = wire.read_size(content, index)
            sizes.append(size)
    except (IndexError, wire.MalformedError):
        raise InvalidArgument("tensor_content holds no strings") from None
    if sum(sizes) != len(content) - index:
        raise InvalidArgument("tensor_content has another length than its strings")
    strings = []
    for size in sizes:
        strings.append(content[index : index + size])
        index += size
    return tuple(strings)


def _as_bools(data: bytes) -> bytes:
    return data if are_bools(data) else data.translate(_TO_BOOL)


def _widened(low: bytes, item_bytes: int) -> bytearray:
    data = bytearray(len(low) * item_bytes)
    data[::item_bytes] = low
    return data


_TO_BOOL: Final = bytes([0] + [1] * 255)
