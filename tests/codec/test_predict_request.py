"""PredictRequest: templates read what protobuf reads, and copy nothing."""

from __future__ import annotations

import struct
import tracemalloc

import pytest

from tests.codec.samples import (
    FLOATS,
    SMALL_VIEWS,
    VIEWS,
    content_proto,
    request,
    typed_proto,
)
from tests.present import present
from tfs.codec import predict_request, wire
from tfs.codec.decode_options import DecodeOptions, FillBudget
from tfs.codec.model_spec import ModelSpec
from tfs.codec.predict_request import (
    KNOWN,
    PredictRequestView,
    read_if_quick,
    read_predict_request,
)
from tfs.codec.tensor import BY_NUMBER
from tfs.core.dtype import FLOAT32, INT64, STRING
from tfs.core.errors import InvalidArgument, ResourceExhausted, Unimplemented
from tfs.core.tensor_view import TensorView
from tfs.proto.tensorflow.core.framework import tensor_pb2, types_pb2
from tfs.proto.tensorflow_serving.apis import predict_pb2


@pytest.fixture(autouse=True)
def _forget() -> None:
    """No test depends on what another left remembered."""
    KNOWN.forget()


def upb(message: bytes) -> PredictRequestView:
    return predict_request.parse(message, FillBudget(1 << 30))


@pytest.mark.parametrize("view", VIEWS + SMALL_VIEWS, ids=repr)
def test_every_dtype_is_read_alike_in_every_way(view: TensorView) -> None:
    """Template and protobuf agree on every dtype and both encodings."""
    protos = [typed_proto(view)]
    if view.dtype is not STRING:
        protos.append(content_proto(view))
    for proto in protos:
        message = request(proto).SerializeToString()
        expected = upb(message)
        assert expected.inputs == {"x0": view}
        for _ in range(2):  # the second time as a template, where one is kept
            assert read_predict_request(message) == expected
            assert read_predict_request(memoryview(message)) == expected
            assert read_predict_request(bytearray(message)) == expected
            assert read_if_quick(message) == expected


def test_a_large_payload_is_not_copied() -> None:
    """Once a request like it was read, the tensor's buffer is the message's."""
    view = TensorView(FLOAT32, (1, 150_528), bytes(602_112))
    for proto in (typed_large(view), content_proto(view)):
        message = request(proto).SerializeToString()
        assert read_predict_request(message).inputs["x0"] == view
        data = read_predict_request(message).inputs["x0"].data
        assert isinstance(data, memoryview)
        assert data.obj is message
        window = memoryview(message)
        data = read_predict_request(window).inputs["x0"].data
        assert isinstance(data, memoryview)
        assert data.obj is message


def typed_large(view: TensorView) -> tensor_pb2.TensorProto:
    proto = tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT)
    for size in view.shape:
        proto.tensor_shape.dim.add(size=size)
    proto.float_val.extend([0.0] * view.num_elements)
    return proto


def test_the_whole_model_spec_is_read() -> None:
    """Name, version or label, and signature."""
    message = request(typed_proto(FLOATS))
    message.model_spec.version.value = 7
    message.model_spec.signature_name = "sig"
    view = read_predict_request(message.SerializeToString())
    assert view.model_spec == ModelSpec("m", 7, None, "sig")
    message.model_spec.version_label = "stable"
    view = read_predict_request(message.SerializeToString())
    assert view.model_spec == ModelSpec("m", None, "stable", "sig")


def test_an_absent_model_spec_is_none() -> None:
    """The handler tells an absent spec from an empty one."""
    message = request(typed_proto(FLOATS))
    message.model_spec.Clear()
    assert read_predict_request(message.SerializeToString()).model_spec == ModelSpec("")
    message.ClearField("model_spec")
    assert read_predict_request(message.SerializeToString()).model_spec is None
    assert read_predict_request(b"").inputs == {}


def test_output_filter_and_client_id_are_read() -> None:
    """They are read as sent, in order and with duplicates, which the handler judges."""
    message = request(
        typed_proto(FLOATS), output_filter=["b", "a", "b"], client_id=b"\xff1"
    ).SerializeToString()
    for _ in range(2):
        view = read_predict_request(message)
        assert view.output_filter == ("b", "a", "b")
        assert view.client_id == b"\xff1"
        assert view == upb(message)


def test_a_repeated_input_counts_the_last_time() -> None:
    """A map key sent twice has its last value, whole, as protobuf has it."""
    first = request(typed_proto(FLOATS)).SerializeToString()
    message = predict_pb2.PredictRequest()
    ints = TensorView(INT64, (1,), struct.pack("<q", 5))
    message.inputs["x0"].CopyFrom(typed_proto(ints))
    view = read_predict_request(first + message.SerializeToString())
    assert view.inputs == {"x0": ints}


def test_inputs_keep_the_order_in_which_they_were_sent() -> None:
    """Which of them an error names does not depend on whether one like it came before."""
    names = [f"x{index}" for index in range(9)]
    pieces = []
    for name in reversed(names):
        one = predict_pb2.PredictRequest()
        one.inputs[name].CopyFrom(typed_proto(FLOATS))
        pieces.append(one.SerializeToString())
    for _ in range(2):
        view = read_predict_request(b"".join(pieces))
        assert list(view.inputs) == names[::-1]


def test_a_repeated_model_spec_is_merged() -> None:
    """A message field sent twice is merged, as protobuf has it."""
    more = predict_pb2.PredictRequest()
    more.model_spec.signature_name = "sig"
    message = request(typed_proto(FLOATS)).SerializeToString()
    view = read_predict_request(message + more.SerializeToString())
    assert view.model_spec == ModelSpec("m", None, None, "sig")


def test_unpacked_values_are_read() -> None:
    """Parsers accept repeated numbers one by one; so do we."""
    values = b"".join(b"\x2d" + struct.pack("<f", value) for value in (1, 2, 3, 4))
    tensor = b"\x08\x01\x12\x08\x12\x02\x08\x01\x12\x02\x08\x04" + values
    entry = b"\x0a\x01x\x12" + bytes([len(tensor)]) + tensor
    message = b"\x12" + bytes([len(entry)]) + entry
    assert read_predict_request(message).inputs == {"x": FLOATS}


def test_a_bad_tensor_is_named_with_the_reason() -> None:
    """TensorFlow Serving's message, and then what is wrong."""
    proto = content_proto(TensorView(FLOAT32, (3,), bytes(8)))
    with pytest.raises(
        InvalidArgument, match=r"tensor parsing error: x1: tensor_content has 8 bytes"
    ):
        read_predict_request(request(typed_proto(FLOATS), proto).SerializeToString())


@pytest.mark.parametrize(
    "message",
    [
        b"\x12",
        b"\x12\x05ab",
        b"\x00\x00",
        b"\x0a\x03\x0a\x01\xff",
        b"\x12\x05\x0a\x01\xff\x12\x00",
        b"\x07",
        b"\xff" * 20,
        b"\x12\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    ],
    ids=["cut", "short", "tag 0", "spec name", "input name", "wire type 7", "ff", "11"],
)
def test_garbage_is_refused(message: bytes) -> None:
    """What protobuf refuses is an INVALID_ARGUMENT, whichever way it was read."""
    with pytest.raises(InvalidArgument, match="cannot parse the PredictRequest"):
        read_predict_request(message)
    with pytest.raises(InvalidArgument):
        read_if_quick(message)


def test_field_number_zero_is_no_tensor_field() -> None:
    """A tag of 0 is malformed, also behind a dtype."""
    tensor = b"\x08\x01\x00\x04abcd"
    entry = b"\x0a\x01x\x12" + bytes([len(tensor)]) + tensor
    with pytest.raises(InvalidArgument, match="cannot parse"):
        read_predict_request(b"\x12" + bytes([len(entry)]) + entry)


@pytest.mark.parametrize("sizes", [[-1], [1 << 62, 4], [1] * 100_000])
def test_an_impossible_shape_is_refused(sizes: list[int]) -> None:
    """Negative sizes, overflowing products and absurd ranks are errors."""
    proto = typed_proto(FLOATS)
    del proto.tensor_shape.dim[:]
    for size in sizes:
        proto.tensor_shape.dim.add(size=size)
    with pytest.raises(InvalidArgument, match="tensor parsing error: x0: "):
        read_predict_request(request(proto).SerializeToString())


def test_a_huge_claim_with_little_payload_is_refused() -> None:
    """Filling in is budgeted per request, whatever the dtype."""
    proto = tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, float_val=[1.0])
    proto.tensor_shape.dim.add(size=1 << 33)
    with pytest.raises(ResourceExhausted, match="tensor parsing error: x0: "):
        read_predict_request(request(proto).SerializeToString())
    proto.tensor_shape.dim[0].size = 100
    options = DecodeOptions(max_tensor_bytes=1_000)
    message = request(proto, proto).SerializeToString()
    assert read_predict_request(message, options).inputs["x1"].size_bytes == 400
    message = request(proto, proto, proto).SerializeToString()
    with pytest.raises(ResourceExhausted, match="limit for a request is 1000"):
        read_predict_request(message, options)


@pytest.mark.parametrize("how", ["plain", "with content", "with values"])
@pytest.mark.parametrize("dtype", [types_pb2.DT_FLOAT, types_pb2.DT_STRING, 9, 10])
def test_rows_of_nothing_are_budgeted_too(dtype: int, how: str) -> None:
    """They take no bytes to send, and an answer each: sixty bytes asked for terabytes."""
    options = DecodeOptions(quick_fill_bytes=1_000)

    def message(*sizes: int) -> bytes:
        proto = tensor_pb2.TensorProto(dtype=dtype)  # type: ignore[arg-type]
        for size in sizes:
            proto.tensor_shape.dim.add(size=size)
        if how == "with content":
            proto.tensor_content = b"abcd"
        elif how == "with values":
            field = {1: "float_val", 7: "string_val", 9: "int64_val", 10: "bool_val"}
            getattr(proto, field[dtype]).extend([b"a" if dtype == 7 else 1] * 200)
        return request(proto).SerializeToString()

    for sizes in ((1 << 40, 0), (1 << 20, 1 << 20, 0), (2, 0, 1 << 40)):
        with pytest.raises(ResourceExhausted, match="tensor parsing error: x0: "):
            read_predict_request(message(*sizes), options)
        assert read_if_quick(message(*sizes), options) is None
    for few in ((3, 0), (0, 1 << 40), (0,), (0, 0)):
        for read in (read_predict_request, read_if_quick):
            assert present(read(message(*few), options)).inputs["x0"].shape == few
    assert read_if_quick(message(2_000, 0), options) is None
    assert (
        read_predict_request(message(2_000, 0), options).inputs["x0"].num_rows == 2_000
    )


def test_hostile_messages_allocate_little() -> None:
    """Small messages with big claims cost no memory worth mentioning."""
    huge = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING)
    huge.tensor_shape.dim.add(size=1 << 40)
    deep = tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT)
    for _ in range(10_000):
        deep.tensor_shape.dim.add(size=1)
    negative = tensor_pb2.TensorProto(dtype=types_pb2.DT_INT64, int64_val=[1])
    negative.tensor_shape.dim.add(size=-(1 << 62))
    overflow = tensor_pb2.TensorProto(dtype=types_pb2.DT_BOOL, bool_val=[True])
    for _ in range(4):
        overflow.tensor_shape.dim.add(size=1 << 31)
    messages = [
        request(proto).SerializeToString() for proto in (huge, deep, negative, overflow)
    ]
    messages.append(b"\x12\xff\xff\xff\xff\x07")
    messages.append(b"\x12\x0d\x0a\x01x\x12\xf8\xff\xff\xff\x07\x22\xf0\xff")
    tracemalloc.start()
    try:
        for message in messages:
            with pytest.raises((InvalidArgument, ResourceExhausted)):
                read_predict_request(message)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20


def test_a_streamed_prediction_is_refused() -> None:
    """Part of a request must not be answered as if it were all of it."""
    message = request(typed_proto(FLOATS))
    message.predict_streamed_options.request_state = 1  # type: ignore[assignment]
    with pytest.raises(Unimplemented, match="predict_streamed_options"):
        read_predict_request(message.SerializeToString())


def test_what_takes_long_is_left_to_somebody_else() -> None:
    """Off the loop: many strings, many varints, big unusual messages, big fills."""
    strings = TensorView(STRING, (20_000,), (b"ab",) * 20_000)
    varints = TensorView(INT64, (20_000,), struct.pack("<q", -1) * 20_000)
    huge = tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT)
    huge.tensor_shape.dim.add(size=1 << 20)
    unusual = tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, version_number=1)
    unusual.tensor_content = bytes(100_000)
    unusual.tensor_shape.dim.add(size=25_000)
    for proto in (typed_proto(strings), typed_proto(varints), huge, unusual):
        message = request(proto).SerializeToString()
        assert read_if_quick(message) is None
        assert read_predict_request(message) == upb(message)
    crowd = request(*[typed_proto(FLOATS)] * 500).SerializeToString()
    assert read_if_quick(crowd) is None
    assert len(read_predict_request(crowd).inputs) == 500


def test_a_large_raw_payload_is_quick_once_one_like_it_was_read() -> None:
    """Size alone does not count: raw elements are never touched."""
    view = TensorView(FLOAT32, (1 << 20,), bytes(4 << 20))
    message = request(content_proto(view)).SerializeToString()
    assert read_if_quick(message) is None
    read_predict_request(message)
    assert present(read_if_quick(message)).inputs["x0"] == view


def test_numbers_of_one_byte_are_counted_before_they_take_eight() -> None:
    """A request that has to wait for its memory is not parsed before."""
    view = TensorView(INT64, (100_000,), struct.pack("<q", 1) * 100_000)
    message = request(typed_proto(view)).SerializeToString()

    class NoRoomError(Exception):
        """Says that there is none."""

    def reserve(num_bytes: int) -> None:
        assert num_bytes >= 800_000
        raise NoRoomError

    with pytest.raises(NoRoomError):
        read_predict_request(message, reserve=reserve)


@pytest.mark.parametrize(
    "where", ["shape", "variant", "input", "output_filter", "unpacked", "strings"]
)
def test_more_fields_than_objects_could_take_are_refused(where: str) -> None:
    """Fields beyond the bound are refused before objects are made of them.

    Ten megabytes of dimensions took seven hundred. As many of unpacked values took
    seconds, and as many of strings, in an unusual request, a dozen.
    """
    many = b"\x12\x00" * 140_000
    tensor = {
        "shape": wire.delimited(2, many),
        "variant": wire.delimited(15, wire.delimited(3, wire.delimited(2, many))),
        "unpacked": b"\x08\x01" + b"\x2d\0\0\0\0" * 140_000,
        "strings": b"\x12\x02\x08\x01\x08\x07" + b"\x42\x00" * 600_000,
    }.get(where, b"")
    entry = wire.delimited(1, b"x") + wire.delimited(2, tensor)
    message = wire.delimited(2, entry)
    message += {"input": many, "output_filter": b"\x1a\x00" * 70_000}.get(where, b"")
    for end in (b"", b"\xff"):  # malformed behind them
        with pytest.raises(ResourceExhausted, match=r"more than (65536|131072)"):
            read_predict_request(message + end)


def test_many_values_are_no_fields() -> None:
    """An unusual request may have as many as another."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "m"
    tensor = request.inputs["x"]
    tensor.dtype = types_pb2.DT_STRING
    tensor.tensor_shape.dim.add(size=70_000)
    tensor.string_val.extend([b""] * 70_000)
    message = request.SerializeToString() + b"\xf8\x07\x01"  # and an unknown field
    view = read_predict_request(message).inputs["x"]
    assert view.shape == (70_000,)


@pytest.mark.parametrize("num_elements", [1, 300_000, 700_000])
@pytest.mark.parametrize("dtype", [9, 10, 4], ids=["int64", "bool", "uint8"])
def test_many_packed_values_are_those_of_message_objects(
    dtype: int, num_elements: int
) -> None:
    """Cut to the shape, or the last one repeated; what is behind them counts as well."""
    short, long = b"\x01" * 200_000, b"\xac\x02" * 100_000
    kind = BY_NUMBER[dtype]
    for packed in (short, long + short, short + long + short):
        shape = wire.delimited(
            2, wire.delimited(2, b"\x08" + wire.varint(num_elements))
        )
        values = kind.typed_tag + wire.varint(len(packed)) + packed
        tensor = b"\x08" + wire.varint(dtype) + shape + values
        entry = wire.delimited(1, b"x") + wire.delimited(2, tensor)
        message = wire.delimited(2, entry)
        assert read_predict_request(message) == predict_request.parse(
            message, FillBudget(64 << 20)
        )
    broken = message[:-1] + b"\x80"
    with pytest.raises(InvalidArgument, match="cannot parse"):
        read_predict_request(broken)
