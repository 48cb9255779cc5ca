"""TensorProto to TensorView and back, for every dtype and TensorFlow's rules."""

from __future__ import annotations

import struct

import pytest

from tests.codec.samples import (
    DATA,
    FIELDS,
    SMALL_VIEWS,
    VIEWS,
    content_proto,
    typed_proto,
)
from tfs.codec.decode_options import FillBudget
from tfs.codec.tensor import (
    BY_DTYPE,
    BY_NUMBER,
    are_bools,
    fill_tensor_proto,
    is_quickly_written,
    tensor_view_of,
    wire_type,
    write_tensor,
)
from tfs.core import dtype as dtypes
from tfs.core.dtype import BOOL, DTYPES, FLOAT16, FLOAT32, INT8, INT32, STRING, DType
from tfs.core.errors import InvalidArgument, ResourceExhausted
from tfs.core.tensor_view import TensorView
from tfs.proto.tensorflow.core.framework import tensor_pb2, types_pb2


def parsed(view: TensorView, *, as_tensor_content: bool) -> tensor_pb2.TensorProto:
    message = write_tensor(view, as_tensor_content=as_tensor_content)
    return tensor_pb2.TensorProto.FromString(message)


def nothing(view: TensorView) -> bytes | tuple[bytes, ...]:
    return () if view.dtype is STRING else b""


@pytest.mark.parametrize("view", VIEWS + SMALL_VIEWS, ids=repr)
def test_typed_fields_read_as_the_elements(view: TensorView) -> None:
    """A typed field's values are the elements, bit by bit."""
    assert tensor_view_of(typed_proto(view)) == view


@pytest.mark.parametrize("view", VIEWS + SMALL_VIEWS, ids=repr)
def test_written_typed_fields_are_what_protobuf_would_write(view: TensorView) -> None:
    """The writer's bytes are protobuf's own serialization."""
    assert write_tensor(view) == typed_proto(view).SerializeToString()


def many(view: TensorView) -> TensorView:
    """Returns the view's elements over and over, some thousand times."""
    data = view.data
    assert not isinstance(data, memoryview)
    return TensorView(view.dtype, (6, 2_000), data * 2_000)


TYPED_VIEWS = [v for v in VIEWS + SMALL_VIEWS if not BY_DTYPE[v.dtype].is_raw]


@pytest.mark.parametrize("view", TYPED_VIEWS, ids=repr)
def test_many_elements_are_written_as_one_field(view: TensorView) -> None:
    """They are written a portion at a time, which does not show."""
    whole = many(view)
    assert write_tensor(whole) == typed_proto(whole).SerializeToString()


def test_long_strings_are_written_as_short_ones() -> None:
    """Long ones are copied by other means, portion by portion."""
    strings = (b"a" * 4_000,) * 4_096 + (b"b",) * 4_096 + (b"c" * 1_000_000, b"")
    view = TensorView(STRING, (len(strings),), strings)
    assert write_tensor(view) == typed_proto(view).SerializeToString()


@pytest.mark.parametrize("view", TYPED_VIEWS, ids=repr)
def test_what_takes_long_to_write_is_told_before(view: TensorView) -> None:
    """Thousands of values, or long strings: the serving loop writes neither."""
    item_bytes = view.dtype.item_bytes
    assert is_quickly_written(view.data, item_bytes)
    assert not is_quickly_written(many(view).data, item_bytes)


def test_a_few_long_strings_take_long_to_write() -> None:
    """Even a few long strings take long to write, because they are copied."""
    assert not is_quickly_written((b"a" * 300_000,), 0)


@pytest.mark.parametrize("num_bytes", [0, 10, 300_000, 600_000])
def test_booleans_are_looked_at_to_the_last(num_bytes: int) -> None:
    """Many are looked at a portion at a time."""
    data = bytearray(b"\1" * num_bytes)
    assert are_bools(data)
    for at in {0, num_bytes - 1} if data else ():
        data[at] = 2
        assert not are_bools(memoryview(data))
        data[at] = 0


@pytest.mark.parametrize(
    "view", [v for v in VIEWS + SMALL_VIEWS if v.dtype is not STRING], ids=repr
)
def test_tensor_content_is_the_elements_both_ways(view: TensorView) -> None:
    """tensor_content holds the elements' bytes as they are."""
    assert tensor_view_of(content_proto(view)) == view
    assert parsed(view, as_tensor_content=True) == content_proto(view)


def test_strings_stay_typed_when_content_is_asked_for() -> None:
    """Python clients read no strings from tensor_content, so none are put there."""
    view = TensorView(STRING, (2,), (b"a", b"\xff"))
    assert list(parsed(view, as_tensor_content=True).string_val) == [b"a", b"\xff"]


def test_strings_in_tensor_content_are_read() -> None:
    """TensorFlow's form: all lengths as varints, then all bytes."""
    proto = typed_proto(TensorView(STRING, (3,), ()))
    proto.tensor_content = b"\x01\x00\x82\x01" + b"a" + b"b" * 130
    assert tensor_view_of(proto).data == (b"a", b"", b"b" * 130)


@pytest.mark.parametrize(
    "content", [b"\x01", b"\x01\x01\x01a", b"\x00\x00\x00x", b"\xff\xff\xff", b"\x80"]
)
def test_strings_in_tensor_content_of_another_length_are_refused(
    content: bytes,
) -> None:
    """Lengths that do not add up are an error, never a guess."""
    proto = typed_proto(TensorView(STRING, (3,), ()))
    proto.tensor_content = content
    with pytest.raises(InvalidArgument, match="tensor_content"):
        tensor_view_of(proto)


@pytest.mark.parametrize("view", VIEWS, ids=repr)
def test_missing_values_repeat_the_last(view: TensorView) -> None:
    """Fewer values than elements: the last one fills the rest."""
    few = TensorView(view.dtype, (3,), view.rows(0, 1).data)
    proto = typed_proto(few)
    del proto.tensor_shape.dim[:]
    proto.tensor_shape.dim.add(size=5)
    read = tensor_view_of(proto)
    assert read.shape == (5,)
    last = TensorView(view.dtype, (3,), few.data).rows(2, 3).data
    for index in range(3, 5):
        assert read.rows(index, index + 1).data == last
    assert read.rows(0, 3).data == few.data


@pytest.mark.parametrize("view", VIEWS, ids=repr)
def test_no_values_are_zeros(view: TensorView) -> None:
    """No value at all: zeros, or empty strings."""
    proto = typed_proto(TensorView(view.dtype, (4,), nothing(view)))
    read = tensor_view_of(proto)
    if view.dtype is STRING:
        assert read.data == (b"",) * 4
    else:
        assert read.data == bytes(4 * view.dtype.item_bytes)


@pytest.mark.parametrize("view", VIEWS, ids=repr)
def test_excess_values_are_ignored(view: TensorView) -> None:
    """More values than elements: the first ones count, as in TensorFlow."""
    proto = typed_proto(view)
    del proto.tensor_shape.dim[:]
    proto.tensor_shape.dim.add(size=2)
    expected = TensorView(view.dtype, (6,), view.data).rows(0, 2)
    assert tensor_view_of(proto) == expected


@pytest.mark.parametrize("view", VIEWS, ids=repr)
def test_a_tensor_without_elements_ignores_its_payload(view: TensorView) -> None:
    """A zero in the shape makes every payload right."""
    proto = typed_proto(view)
    proto.tensor_shape.dim[0].size = 0
    assert tensor_view_of(proto).shape == (0, 3)
    assert len(tensor_view_of(proto).data) == 0
    proto.tensor_content = b"whatever"
    assert len(tensor_view_of(proto).data) == 0


@pytest.mark.parametrize("view", VIEWS, ids=repr)
def test_an_empty_tensor_is_written_with_its_shape(view: TensorView) -> None:
    """No elements, but dtype and shape are told."""
    empty = TensorView(view.dtype, (0, 3), nothing(view))
    for as_tensor_content in (False, True):
        proto = parsed(empty, as_tensor_content=as_tensor_content)
        assert proto == typed_proto(empty)


def test_a_scalar_has_a_shape_without_dimensions() -> None:
    """A written scalar has a tensor_shape too, an empty one."""
    view = TensorView(FLOAT32, (), struct.pack("<f", 1.5))
    proto = parsed(view, as_tensor_content=False)
    assert proto.HasField("tensor_shape")
    assert tensor_view_of(proto) == view


def test_integers_beyond_a_narrow_dtype_keep_their_low_bits() -> None:
    """int_val is 32 bits wide; an int8 takes the low eight, as in TensorFlow."""
    proto = tensor_pb2.TensorProto(dtype=6, int_val=[300, -129])  # type: ignore[arg-type]
    proto.tensor_shape.dim.add(size=2)
    assert tensor_view_of(proto) == TensorView(INT8, (2,), struct.pack("2b", 44, 127))


def test_booleans_in_tensor_content_are_zero_or_one() -> None:
    """Any other byte would be undefined in what reads booleans; TensorFlow refuses it."""
    proto = content_proto(TensorView(BOOL, (2,), b"\0\1"))
    assert tensor_view_of(proto).data == b"\0\1"
    for data in (b"\0\2", b"\xff\1"):
        proto.tensor_content = data
        with pytest.raises(InvalidArgument, match="bool holds a byte that is neither"):
            tensor_view_of(proto)
    typed = tensor_pb2.TensorProto.FromString(b"\x5a\x03\x02\x80\x01")  # 2 and 128
    typed.dtype = types_pb2.DT_BOOL
    typed.tensor_shape.dim.add(size=2)
    assert tensor_view_of(typed).data == b"\1\1"


@pytest.mark.parametrize("dtype", [0, 11, 20, 21, 27, 29, 101, 4711])
def test_a_dtype_that_is_not_served_is_refused_by_name(dtype: int) -> None:
    """Quantized, resource, reference and unknown types have no TensorView."""
    with pytest.raises(InvalidArgument, match="not supported"):
        tensor_view_of(tensor_pb2.TensorProto(dtype=dtype))  # type: ignore[arg-type]


@pytest.mark.parametrize("sizes", [(), (2,), (0, 3)])
def test_a_rank_said_to_be_unknown_is_that_of_the_sizes(sizes: tuple[int, ...]) -> None:
    """As in TensorFlow: a tensor that was sent has a shape, whatever it says of it."""
    proto = tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT)
    for size in sizes:
        proto.tensor_shape.dim.add(size=size)
    known = tensor_view_of(proto)
    proto.tensor_shape.unknown_rank = True
    assert tensor_view_of(proto) == known
    assert known.shape == sizes


def test_tensor_content_of_another_length_is_refused() -> None:
    """tensor_content must be exactly as long as dtype and shape say."""
    proto = content_proto(TensorView(INT32, (2, 3), bytes(20)))
    with pytest.raises(InvalidArgument, match=r"has 20 bytes.* takes 24"):
        tensor_view_of(proto)


@pytest.mark.parametrize("dtype", [1, 7, 9])
def test_a_huge_claim_with_little_payload_allocates_nothing(dtype: int) -> None:
    """Elements that were not sent come out of a budget, checked before they exist."""
    proto = tensor_pb2.TensorProto(dtype=dtype)  # type: ignore[arg-type]
    proto.tensor_shape.dim.add(size=1 << 40)
    with pytest.raises(ResourceExhausted, match="bytes more than was sent"):
        tensor_view_of(proto)


def test_fill_tensor_proto_writes_into_a_message() -> None:
    """The message, empty before, equals the tensor."""
    proto = tensor_pb2.TensorProto()
    view = TensorView(dtypes.INT64, (2,), struct.pack("<2q", 5, -5))
    fill_tensor_proto(proto, view)
    assert tensor_view_of(proto) == view


def test_a_memoryview_is_written_like_bytes() -> None:
    """Rows cut from a batch are memoryviews."""
    for view in VIEWS:
        if view.dtype is not STRING:
            window = TensorView(view.dtype, view.shape, memoryview(view.data))  # type: ignore[arg-type]
            assert write_tensor(window) == write_tensor(view)


@pytest.mark.parametrize("dtype", [INT8, dtypes.UINT64, BOOL, FLOAT16])
def test_many_numbers_are_read_as_few(dtype: DType) -> None:
    """They are taken in portions; each keeps its low bits, the last is repeated."""
    num = 40_000
    one = next(view for view in SMALL_VIEWS if view.dtype is dtype)
    proto = typed_proto(one)
    field = getattr(proto, FIELDS[dtype][1])
    small = list(field)
    field.extend(small * (num // 6))
    if dtype is INT8:
        field.append(300)  # 44 in the low bits
    proto.tensor_shape.dim[0].size = len(field) + 1
    assert isinstance(one.data, bytes)
    last = b"\x2c" if dtype is INT8 else one.data[-dtype.item_bytes :]
    added = 2 if dtype is INT8 else 1
    expected = one.data * (num // 6 + 1) + last * added
    assert tensor_view_of(proto).data == expected


@pytest.mark.parametrize("as_content", [False, True])
def test_millions_of_short_strings_are_bounded(as_content: bool) -> None:
    """As objects they take twenty times what they take on the wire; long ones do not."""
    budget = FillBudget(4 << 20)

    def strings(num: int, size: int) -> tensor_pb2.TensorProto:
        proto = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING)
        proto.tensor_shape.dim.add(size=num)
        if as_content:
            proto.tensor_content = bytes([size]) * num + b"x" * size * num
        else:
            proto.string_val.extend([b"x" * size] * num)
        return proto

    with pytest.raises(ResourceExhausted, match="100000 strings apart takes"):
        tensor_view_of(strings(100_000, 2), budget)
    for num, size in ((16_000, 2), (100_000, 50)):
        view = tensor_view_of(strings(num, size), FillBudget(4 << 20))
        assert view.data == (b"x" * size,) * num


def test_every_dtype_of_the_core_travels() -> None:
    """A dtype added to the core without a wire form is noticed here."""
    assert set(BY_DTYPE) == set(DTYPES.values()) == set(DATA) == set(FIELDS)


def test_the_table_is_tensorflows() -> None:
    """Numbers and fields as TensorFlow documents them; none is used twice."""
    assert len(BY_NUMBER) == len(BY_DTYPE)
    for dtype, (number, field, _) in FIELDS.items():
        assert wire_type(number) is BY_DTYPE[dtype]
        assert BY_DTYPE[dtype].field == field


def test_an_unknown_number_is_refused_by_its_name_if_it_has_one() -> None:
    """DT_QINT8 says more than 11."""
    with pytest.raises(InvalidArgument, match="dtype DT_QINT8 is not supported"):
        wire_type(11)
    with pytest.raises(InvalidArgument, match="dtype 4711 is not supported"):
        wire_type(4711)
