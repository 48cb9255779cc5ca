"""The fast ways of reading PredictRequests against upb, on messages made to differ.

Messages are assembled from pieces that are right, odd or wrong, and then mutated byte
by byte. Whatever comes out must be accepted or refused as by message objects, with the
same values; and since every message leaves templates behind, each is read again in the
company of all those before it.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.codec.mutation import mutated
from tests.codec.samples import SMALL_VIEWS, VIEWS, content_proto, typed_proto
from tfs.codec import wire
from tfs.codec.decode_options import DecodeOptions, FillBudget
from tfs.codec.predict_request import (
    KNOWN,
    PredictRequestView,
    parse,
    read_if_quick,
    read_predict_request,
)
from tfs.core.dtype import STRING
from tfs.core.errors import ServingError
from tfs.core.tensor_view import TensorView
from tfs.proto.tensorflow_serving.apis import predict_pb2

OPTIONS = DecodeOptions(max_tensor_bytes=5_000, quick_bytes=300, quick_fill_bytes=500)


def outcome(message: bytes) -> PredictRequestView | str:
    """Returns what message objects make of the message: the oracle."""
    try:
        return parse(message, FillBudget(OPTIONS.max_tensor_bytes))
    except ServingError as error:
        return str(error)


def check(message: bytes) -> None:
    """Reads the message in every way; all must agree with the oracle."""
    expected = outcome(message)
    for buffer in (message, memoryview(message), bytearray(message)):
        try:
            read: PredictRequestView | str = read_predict_request(buffer, OPTIONS)
        except ServingError as error:
            read = str(error)
        assert read == expected, message.hex()
    try:
        quick: PredictRequestView | str | None = read_if_quick(message, OPTIONS)
    except ServingError as error:
        quick = str(error)
    if quick is not None:
        assert quick == expected, message.hex()
    alike = KNOWN.read_alike([message, memoryview(message), message], 0)
    if alike is not None:
        template, elements = alike
        assert len(elements) == 3
        for each in elements:
            views = {
                name: TensorView(dtype, shape, data)
                for (name, dtype, shape), data in zip(
                    template.inputs, each, strict=True
                )
            }
            read = PredictRequestView(template.model_spec, views, ())
            assert read == expected, message.hex()


SIZES = st.sampled_from([0, 1, 2, 3, 6, 127, 128, 1 << 31, 1 << 63, (1 << 64) - 1])
DIMS = st.one_of(
    st.builds(lambda size: wire.delimited(2, b"\x08" + wire.varint(size)), SIZES),
    st.just(wire.delimited(2, b"")),
    st.just(wire.delimited(2, b"\x08\x02\x12\x01n")),
    st.just(wire.delimited(2, b"\x12\x01\xff\x08\x02")),
    st.just(wire.delimited(2, b"\x08\x01\x08\x03")),
    st.just(b"\x18\x01"),
    st.just(wire.delimited(2, b"\x08\x82\x00")),
    st.binary(max_size=4),
)
SHAPES = st.one_of(
    st.just(wire.delimited(2, b"\x12\x02\x08\x02\x12\x02\x08\x03")),
    st.just(wire.delimited(2, b"\x12\x02\x08\x06")),
    st.lists(DIMS, max_size=3).map(lambda dims: wire.delimited(2, b"".join(dims))),
)
PAYLOADS = st.one_of(
    st.sampled_from([bytes(v.data) for v in VIEWS if v.dtype is not STRING]),  # type: ignore[arg-type]
    st.binary(max_size=30),
    st.integers(0, 13).map(lambda n: bytes(range(n))),
    st.lists(st.sampled_from([0, 1, -1, 127, 128, 300, 1 << 40]), max_size=8).map(
        lambda values: b"".join(map(wire.varint, values))
    ),
)
FIELD_NUMBERS = st.sampled_from([*range(4, 19), 19, 300])
TENSOR_PIECES = st.one_of(
    st.builds(
        lambda number: b"\x08" + wire.varint(number),
        st.one_of(st.integers(0, 30), st.just((1 << 32) + 1), st.just(-1)),
    ),
    SHAPES,
    st.builds(wire.delimited, FIELD_NUMBERS, PAYLOADS),
    st.builds(wire.delimited, FIELD_NUMBERS, PAYLOADS),
    st.builds(wire.delimited, st.just(8), st.binary(max_size=5)),
    st.just(b"\x2d" + struct.pack("<f", 1.5)),  # one unpacked float
    st.just(b"\x31" + struct.pack("<d", 1.5)),
    st.just(b"\x38\x05"),  # one unpacked int
    st.just(b"\x18\x01"),  # version_number
    st.just(b"\x00\x01a"),
    st.binary(max_size=4),
)
WHOLE_TENSORS = st.sampled_from(
    [typed_proto(v).SerializeToString() for v in VIEWS + SMALL_VIEWS]
    + [
        content_proto(v).SerializeToString()
        for v in VIEWS + SMALL_VIEWS
        if v.dtype is not STRING
    ]
)
TENSORS = st.one_of(
    WHOLE_TENSORS,
    st.lists(TENSOR_PIECES, max_size=5).map(b"".join),
    st.builds(
        lambda number, shape, rest: b"\x08" + bytes([number]) + shape + b"".join(rest),
        st.sampled_from([1, 1, 2, 3, 7, 9, 10, 19]),
        SHAPES,
        st.lists(TENSOR_PIECES, max_size=2),
    ),
)
NAMES = st.sampled_from([b"x", b"y", b"", b"\xff", "ä".encode(), b"n" * 130])
ENTRIES = st.one_of(
    st.builds(lambda n, t: wire.delimited(1, n) + wire.delimited(2, t), NAMES, TENSORS),
    st.builds(lambda n, t: wire.delimited(1, n) + wire.delimited(2, t), NAMES, TENSORS),
    st.builds(lambda n, t: wire.delimited(2, t) + wire.delimited(1, n), NAMES, TENSORS),
    st.builds(wire.delimited, st.integers(1, 3), TENSORS),
    st.lists(
        st.builds(wire.delimited, st.integers(1, 3), NAMES | TENSORS), max_size=4
    ).map(b"".join),
).map(lambda entry: wire.delimited(2, entry))
SPECS = st.sampled_from(
    [
        b"\x0a\x01m",
        b"",
        b"\x0a\x01m\x12\x02\x08\x05",
        b"\x0a\x01m\x1a\x03sig\x22\x06stable",
        b"\x0a\x01m\x12\x02\x08\x05\x22\x06stable",
        b"\x0a\x01\xff",
        b"\x0a\x05m",
    ]
).map(lambda spec: wire.delimited(1, spec))
OTHERS = st.sampled_from(
    [
        wire.delimited(3, b"out"),
        wire.delimited(3, b"\xff"),
        wire.delimited(6, b"client\xff"),
        wire.delimited(5, b""),
        wire.delimited(5, b"\x08\x01"),
        wire.delimited(7, b"\x10\x01"),
        wire.delimited(4, b"reserved"),
        wire.delimited(99, b"unknown"),
        b"\x10\x01",
        b"\x0b\x08\x01\x0c",
    ]
)
MESSAGES = st.one_of(
    st.builds(lambda spec, entries: spec + b"".join(entries), SPECS,
              st.lists(ENTRIES, min_size=1, max_size=3)),
    st.lists(st.one_of(SPECS, ENTRIES, ENTRIES, OTHERS), max_size=5).map(b"".join),
)  # fmt: skip


@given(MESSAGES, st.integers(0, 1 << 32))
@settings(max_examples=400, deadline=None)
@example(b"\x12\x0d\x0a\x01x\x12\x08\x08\x01\x00\x04abcd", 0)
def test_any_message_is_read_as_by_message_objects(message: bytes, seed: int) -> None:
    """Same accepted, same refused with the same words, same values."""
    check(message)
    check(mutated(message, seed))


@pytest.mark.stress
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(10))
@given(message=MESSAGES, seed=st.integers(0, 1 << 32))
@settings(
    max_examples=10_000,
    deadline=None,
    derandomize=False,
    suppress_health_check=list(HealthCheck),
)
def test_any_message_is_read_as_by_message_objects_for_long(
    part: int, message: bytes, seed: int
) -> None:
    """The same 100,000 times over, and from another place each time.

    In parts, since hypothesis remembers each example of a run: of all, a gigabyte.
    """
    check(message)
    for offset in range(5):
        check(mutated(message, seed + offset))


F32 = b"\x08\x01"
TWO = b"\x12\x04\x12\x02\x08\x02"  # shape [2]
AT_THE_EDGE = {
    "six bytes of floats": F32 + TWO + b"\x2a\x06abcdef",
    "six bytes of floats for one": F32 + b"\x12\x04\x12\x02\x08\x01\x2a\x06abcdef",
    "twelve bytes of doubles": b"\x08\x02" + TWO + b"\x32\x0cabcdefghijkl",
    "three floats for one complex": b"\x08\x08\x4a\x0c" + bytes(range(12)),
    "six bytes for a complex": b"\x08\x08\x4a\x06" + bytes(range(6)),
    "seven bytes for a complex128": b"\x08\x12\x62\x07" + bytes(range(7)),
    "eleven bytes of float8": b"\x08\x18\x92\x01\x0babcdefghijk",
    "dtype cut off": TWO + b"\x2a\x08abcdefgh\x08",
    "dtype cut off, no values": TWO + b"\x08",
    "dtype that runs out of the tensor": TWO + b"\x08\x81",
    "two dtypes": F32 + TWO + b"\x2a\x08abcdefgh\x08\x02",
    "dtype beyond 32 bits": b"\x08\x81\x80\x80\x80\x10" + TWO + b"\x2a\x08abcdefgh",
    "overlong dtype": b"\x08\x81\x00" + TWO + b"\x2a\x08abcdefgh",
    "no dtype": TWO + b"\x2a\x08abcdefgh",
    "two shapes": F32 + TWO + TWO + b"\x2a\x10abcdefghijklmnop",
    "shape with a cut dimension": F32 + b"\x12\x03\x12\x02\x08\x2a\x04abcd",
    "dimension that leaves the shape": F32 + b"\x12\x04\x12\x04\x08\x02\x2a\x04abcd",
    "dimension with bytes behind": F32 + b"\x12\x05\x12\x03\x08\x02\x00\x2a\x04abcd",
    "dimension with two sizes": F32 + b"\x12\x06\x12\x04\x08\x03\x08\x01\x2a\x04abcd",
    "overlong size": F32 + b"\x12\x05\x12\x03\x08\x81\x00\x2a\x04abcd",
    "dimension without a size": F32 + b"\x12\x02\x12\x00\x2a\x04abcd",
    "named dimension": F32 + b"\x12\x07\x12\x05\x08\x01\x12\x01n\x2a\x04abcd",
    "negative beside zero": F32
    + b"\x12\x0f\x12\x00\x12\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    "overflow before zero": F32
    + b"\x12\x12"
    + b"\x12\x07\x08\x80\x80\x80\x80\x80\x40" * 2
    + b"\x12\x00",
    "rank 254": F32 + wire.delimited(2, b"\x12\x02\x08\x01" * 254) + b"\x2a\x04abcd",
    "rank 255": F32 + wire.delimited(2, b"\x12\x02\x08\x01" * 255) + b"\x2a\x04abcd",
    "rank 256 with zero": F32 + wire.delimited(2, b"\x12\x00" * 256),
    "empty content and values": F32 + TWO + b"\x22\x00\x2a\x08abcdefgh",
    "empty content": F32 + TWO + b"\x22\x00",
    "content and values": F32 + TWO + b"\x22\x08abcdefgh\x2a\x08ABCDEFGH",
    "content twice": F32 + TWO + b"\x22\x08abcdefgh\x22\x08ABCDEFGH",
    "values twice": F32 + TWO + b"\x2a\x04abcd\x2a\x04ABCD",
    "values of another dtype": F32 + TWO + b"\x3a\x02\x01\x02",
    "malformed values of another dtype": F32 + TWO + b"\x3a\x01\x80",
    "content that leaves the tensor": F32 + TWO + b"\x22\x09abcdefgh",
    "unclean booleans": b"\x08\x0a" + TWO + b"\x22\x02\x02\xff",
    "unclean typed booleans": b"\x08\x0a" + TWO + b"\x5a\x02\x02\x7f",
    "wide booleans": b"\x08\x0a" + TWO + b"\x5a\x04\x80\x01\x80\x00",
    "cut varint": b"\x08\x09" + TWO + b"\x52\x02\x01\x80",
    "varint of eleven bytes": b"\x08\x09" + TWO + b"\x52\x0b" + b"\xff" * 10 + b"\x01",
    "varints for no elements": b"\x08\x09\x12\x02\x12\x00\x52\x01\x01",
    "cut varints for no elements": b"\x08\x09\x12\x02\x12\x00\x52\x01\x80",
    "too many values": b"\x08\x09" + TWO + b"\x52\x03\x01\x02\x03",
    "too few values": b"\x08\x09" + TWO + b"\x52\x01\x05",
    "too few floats": F32 + TWO + b"\x2a\x04abcd",
    "no values": F32 + TWO,
    "values of length zero": F32 + TWO + b"\x2a\x00",
    "a string in content": b"\x08\x07\x22\x04\x03abc",
    "strings between fields": b"\x42\x01a\x08\x07" + TWO + b"\x42\x01b",
    "strings and an unknown field": b"\x08\x07" + TWO + b"\x42\x01b\x9a\x06\x00",
    "strings without elements": b"\x08\x07\x12\x02\x12\x00\x42\x01b",
    "tag 0": F32 + b"\x00\x04abcd",
    "end of a group": F32 + b"\x2a\x04abcd\x0c",
    "a variant": b"\x08\x15\x7a\x00",
}


@pytest.mark.parametrize("tensor", AT_THE_EDGE.values(), ids=AT_THE_EDGE)
@pytest.mark.parametrize("after", [b"", b"\x1a\x01o", b"\x12\x05\x0a\x01y\x12\x00"])
def test_tensors_at_the_edge_are_read_as_by_message_objects(
    tensor: bytes, after: bytes
) -> None:
    """One odd thing each; with something behind it that an overrun would read."""
    entry = wire.delimited(1, b"x") + wire.delimited(2, tensor)
    message = wire.delimited(2, entry)
    check(b"\x0a\x03\x0a\x01m" + message + after)
    # The entry ends before the tensor does, or after it.
    for shift in (-1, 1):
        broken = bytearray(message)
        broken[1 if len(message) < 130 else 2] += shift
        check(bytes(broken) + after)


def _strings(num: int, size: int = 9) -> bytes:
    return (b"\x42" + wire.varint(size) + b"s" * size) * num


def _vector(size: int) -> bytes:
    return wire.delimited(2, wire.delimited(2, b"\x08" + wire.varint(size)))


S = b"\x08\x07"
I64 = b"\x08\x09"
LONG = {
    "as many as the shape says": S + _vector(100) + _strings(100),
    "too few": S + _vector(200) + _strings(100),
    "too few by far": S + _vector(2000) + _strings(100),
    "too many": S + _vector(10) + _strings(100),
    "of all lengths": S + _vector(9) + _strings(2, 70_000) + _strings(7, 200),
    "without elements": S + _vector(0) + _strings(100),
    "without a shape": S + _strings(100),
    "shape behind": S + _strings(100) + _vector(100),
    "dtype behind": _vector(100) + _strings(100) + S,
    "another dtype": F32 + _vector(100) + _strings(100),
    "content before": S + _vector(1) + b"\x22\x02\x01a" + _strings(100),
    "cut off": S + _vector(100) + _strings(100)[:-1],
    "tag alone": S + _vector(100) + _strings(100) + b"\x42",
    "unknown field behind": S + _vector(100) + _strings(100) + b"\x9a\x06\x00",
    "more than memory has room for": S + _vector(20_000) + _strings(20_000, 0),
    "of which more than are asked for": S + _vector(5) + _strings(20_000, 0),
    "filled in, more than memory has room for": S + _vector(1 << 40) + _strings(99),
    "long integers": I64
    + _vector(9000)
    + wire.delimited(10, b"".join(map(wire.varint, range(-500, 8500)))),
    "long integers, cut off": I64
    + _vector(9000)
    + wire.delimited(10, wire.varint(1 << 60) * 9000 + b"\x80"),
    "a long integer of eleven bytes": I64
    + _vector(9000)
    + wire.delimited(10, b"\x01" * 16_380 + b"\x80" * 10 + b"\x01" * 9000),
}


@pytest.mark.parametrize("tensor", LONG.values(), ids=LONG)
def test_long_fields_are_read_as_by_message_objects(tensor: bytes) -> None:
    """A portion at a time, to the same values and refusals; mutated, too."""
    entry = wire.delimited(1, b"x") + wire.delimited(2, tensor)
    message = b"\x0a\x03\x0a\x01m" + wire.delimited(2, entry)
    check(message)
    check(message + b"\x1a\x01o")
    for seed in range(10):
        check(mutated(message, seed))
        broken = wire.delimited(1, b"x") + wire.delimited(2, mutated(tensor, seed))
        check(wire.delimited(2, broken))


def clients_messages() -> list[bytes]:
    """Returns what ordinary clients send: every dtype and encoding, one input or two."""
    messages = []
    for first in VIEWS + SMALL_VIEWS:
        for second in VIEWS[:3]:
            request = predict_pb2.PredictRequest()
            request.model_spec.name = "model"
            request.inputs["x"].CopyFrom(typed_proto(first))
            messages.append(request.SerializeToString())
            request.inputs["y"].CopyFrom(content_proto(second))
            request.output_filter.append("out")
            messages.append(request.SerializeToString())
    return messages


def test_changed_clients_messages_are_read_as_by_message_objects() -> None:
    """A few changed bytes: mostly still right, and often of the same length."""
    messages = clients_messages()
    for number in range(3_000):
        check(mutated(messages[number % len(messages)], number))


@pytest.mark.stress
@pytest.mark.timeout(1800)
def test_changed_clients_messages_are_read_as_by_message_objects_for_long() -> None:
    """The same, many times over."""
    messages = clients_messages()
    for number in range(3_000, 300_000):
        check(mutated(messages[number % len(messages)], number))
