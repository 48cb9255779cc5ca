"""Requests of ModelInfer: what is read of them, and what is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from tests.codec.samples import DATA, FLOATS
from tfs.codec.decode_options import DecodeOptions, FillBudget
from tfs.codec.oip.datatype import DATATYPES, raw_contents
from tfs.codec.oip.infer_messages import (
    CONTENTS,
    KNOWN,
    READER,
    InferReplies,
    parse,
)
from tfs.core.dtype import FLOAT16, FLOAT32, FLOAT64, STRING, DType
from tfs.core.errors import (
    InvalidArgument,
    ResourceExhausted,
    ServingError,
    Unimplemented,
)
from tfs.core.tensor_view import TensorView
from tfs.proto.inference import open_inference_grpc_pb2 as pb

FLOAT_TYPES = (FLOAT32, FLOAT64)
VIEWS = [TensorView(dtype, (2, 3), DATA[dtype]) for dtype in DATATYPES]


@pytest.fixture(autouse=True)
def _forget() -> None:
    """No test depends on what another left remembered."""
    KNOWN.forget()


def request(
    *views: TensorView,
    is_raw: bool = True,
    request_id: str = "",
    model_version: str = "",
) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(
        model_name="m", id=request_id, model_version=model_version
    )
    for index, view in enumerate(views):
        proto = message.inputs.add(
            name=f"x{index}", datatype=DATATYPES[view.dtype], shape=view.shape
        )
        if is_raw:
            message.raw_input_contents.append(bytes(raw_contents(view)))
        else:
            fill(proto, view)
    return message


def fill(proto: pb.ModelInferRequest.InferInputTensor, view: TensorView) -> None:
    field, code = CONTENTS[view.dtype]
    values = (
        view.strings
        if view.dtype is STRING
        else struct.unpack(f"<{view.num_elements}{code}", view.buffer)
    )
    getattr(proto.contents, field).extend(values)


@pytest.mark.parametrize("view", VIEWS, ids=str)
@pytest.mark.parametrize("is_raw", [True, False])
def test_each_datatype_is_read_raw_and_typed(view: TensorView, is_raw: bool) -> None:
    """The halves travel raw alone; a NaN of a typed float may lose its payload."""
    if not is_raw and view.dtype not in CONTENTS:
        return
    if not is_raw and view.dtype in FLOAT_TYPES:
        view = TensorView(view.dtype, (1, 2), bytes(2 * view.dtype.item_bytes))
    message = request(view, is_raw=is_raw).SerializeToString()
    for buffer in (message, memoryview(message)):
        read = READER.read(buffer)
        assert read.inputs == {"x0": view}
        assert read.is_raw == is_raw
        assert read.is_plain == is_raw


@pytest.mark.parametrize("view", VIEWS, ids=str)
@pytest.mark.parametrize("is_raw", [True, False])
def test_each_datatype_is_written_raw_and_typed(view: TensorView, is_raw: bool) -> None:
    """What is written reads back as what it was."""
    if not is_raw and view.dtype in FLOAT_TYPES:
        view = TensorView(view.dtype, (1, 2), bytes(2 * view.dtype.item_bytes))
    replies = InferReplies(b"an id", is_raw)
    reply = replies.write(("m", 3, ""), {"y": view})
    message = reply if isinstance(reply, bytes) else b"".join(reply)
    response = pb.ModelInferResponse.FromString(message)
    assert (response.model_name, response.model_version) == ("m", "3")
    assert response.id == "an id"
    # A response names its tensors as a request does.
    again = pb.ModelInferRequest(
        model_name="m", raw_input_contents=response.raw_output_contents
    )
    for output in response.outputs:
        again.inputs.add().ParseFromString(output.SerializeToString())
    assert parse(again.SerializeToString(), FillBudget()).inputs == {"y": view}
    assert bool(response.raw_output_contents) == (is_raw or view.dtype not in CONTENTS)


def test_replies_of_a_batch_are_those_of_their_rows() -> None:
    """Each is what the rows of its request alone would make."""
    floats = TensorView(FLOAT32, (4, 2), struct.pack("<8f", *range(8)))
    halves = TensorView(FLOAT16, (4,), struct.pack("<4H", *range(4)))
    for outputs in ({"y": floats}, {"y": floats, "z": halves}):
        replies = InferReplies().write_all(("m", 3, ""), outputs, 2, 2)
        assert replies == [
            InferReplies().write(
                ("m", 3, ""),
                {name: view.rows(start, start + 2) for name, view in outputs.items()},
            )
            for start in (0, 2)
        ]


def test_a_request_like_an_earlier_one_needs_no_parsing() -> None:
    """Its elements and its id may differ, and nothing else."""
    other = TensorView(FLOAT32, FLOATS.shape, struct.pack("<4f", 9, 8, 7, 6))
    for name in ("", "id-1"):
        READER.read(request(FLOATS, FLOATS, request_id=name).SerializeToString())
        message = request(other, FLOATS, request_id=name and "id-2").SerializeToString()
        known = KNOWN.read_as_before(message)
        assert known is not None
        parsed = parse(message, FillBudget())
        for field in ("inputs", "model_spec", "request_id", "settings", "is_raw"):
            assert getattr(known, field) == getattr(parsed, field)
        assert (KNOWN.read_alike([message], 0) is not None) == (not name)
    changed = request(other, FLOATS, model_version="7").SerializeToString()
    assert KNOWN.read_as_before(changed) is None
    assert KNOWN.read_as_before(message.replace(b"id-2", b"id-\xff")[:-1]) is None
    with pytest.raises(InvalidArgument, match="UTF-8"):
        KNOWN.read_as_before(message.replace(b"id-2", b"id-\xff"))


def test_parameters_set_priority_timeout_and_signature() -> None:
    """Priority 1 is the highest and what 0 stands for; a timeout is in microseconds."""
    message = request(FLOATS)
    message.parameters["priority"].uint64_param = 2
    message.parameters["timeout"].int64_param = 1500
    message.parameters["signature_name"].string_param = "other"
    read = READER.read(message.SerializeToString())
    assert read.settings.is_low
    assert read.settings.timeout_s == 1500e-6
    assert read.model_spec is not None
    assert read.model_spec.signature_name == "other"
    assert not read.is_plain
    message.parameters["priority"].uint64_param = 1
    assert not READER.read(message.SerializeToString()).settings.is_low


def _typed(dtype: DType, shape: list[int], **contents: object) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name="m")
    proto = message.inputs.add(name="x", datatype=DATATYPES[dtype], shape=shape)
    for field, values in contents.items():
        getattr(proto.contents, field).extend(values)
    return message


def _twice(message: pb.ModelInferRequest) -> None:
    message.inputs[1].name = "x0"


def _one_raw_more(message: pb.ModelInferRequest) -> None:
    message.raw_input_contents.append(b"")


def _short(message: pb.ModelInferRequest) -> None:
    message.raw_input_contents[0] = b"abc"


def _both(message: pb.ModelInferRequest) -> None:
    message.inputs[0].contents.fp32_contents.append(1.0)


def _strings(message: pb.ModelInferRequest) -> None:
    message.inputs[0].datatype = "BYTES"
    message.raw_input_contents[0] = struct.pack("<I", 100) + b"short" * 4


def _bools(message: pb.ModelInferRequest) -> None:
    message.inputs[0].datatype = "BOOL"
    message.raw_input_contents[0] = b"\0\1\2\1"


def _negative(message: pb.ModelInferRequest) -> None:
    message.inputs[0].shape[0] = -1


def _unknown_type(message: pb.ModelInferRequest) -> None:
    message.inputs[0].datatype = "FP8"


def _parameter(name: str, **value: object) -> Callable[[pb.ModelInferRequest], None]:
    def edit(message: pb.ModelInferRequest) -> None:
        for field, each in value.items():
            setattr(message.parameters[name], field, each)

    return edit


def _shared_memory(message: pb.ModelInferRequest) -> None:
    message.inputs[0].parameters["shared_memory_region"].string_param = "r"


def _classes(message: pb.ModelInferRequest) -> None:
    message.outputs.add(name="y").parameters["classification"].int64_param = 3


def _output_twice(message: pb.ModelInferRequest) -> None:
    message.outputs.add(name="y")
    message.outputs.add(name="y")


def _version(message: pb.ModelInferRequest) -> None:
    message.model_version = "stable"


@pytest.mark.parametrize(
    ("edit", "error", "words"),
    [
        (_twice, InvalidArgument, "'x0' comes twice"),
        (_one_raw_more, InvalidArgument, "3 raw_input_contents for 2 inputs"),
        (_short, InvalidArgument, "x0: 3 bytes of raw contents"),
        (_both, InvalidArgument, "contents beside raw_input_contents"),
        (_strings, InvalidArgument, "each behind its length"),
        (_bools, InvalidArgument, "neither 0 nor 1"),
        (_negative, InvalidArgument, "negative dimension"),
        (_unknown_type, InvalidArgument, "no datatype 'FP8'"),
        (_parameter("sequence_id", int64_param=1), Unimplemented, "no sequences"),
        (_parameter("foo", bool_param=True), InvalidArgument, "'foo' means nothing"),
        (_parameter("timeout", string_param="1s"), InvalidArgument, "an integer"),
        (_parameter("priority", int64_param=-1), InvalidArgument, "an integer"),
        (_shared_memory, Unimplemented, "no shared memory"),
        (_classes, Unimplemented, "classification is not offered"),
        (_output_twice, InvalidArgument, "'y' comes twice"),
        (_version, InvalidArgument, "'stable' is no number"),
    ],
)
def test_what_is_wrong_is_named(
    edit: Callable[[pb.ModelInferRequest], None], error: type[ServingError], words: str
) -> None:
    """The error names the input or the parameter."""
    message = request(FLOATS, FLOATS)
    edit(message)
    with pytest.raises(error, match=words):
        READER.read(message.SerializeToString())


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (_typed(FLOAT16, [1]), "FP16 travels in raw_input_contents alone"),
        (_typed(FLOAT32, [3], fp32_contents=[1.0]), "1 fp32_contents"),
        (_typed(FLOAT32, [1], fp64_contents=[1.0]), "0 fp32_contents"),
    ],
)
def test_typed_contents_must_fill_their_shape(
    message: pb.ModelInferRequest, words: str
) -> None:
    """By the field of their datatype, with as many values as the shape has."""
    with pytest.raises(InvalidArgument, match=words):
        READER.read(message.SerializeToString())


def test_an_integer_beyond_its_datatype_is_refused() -> None:
    """Its low bits are not taken for the value."""
    message = pb.ModelInferRequest(model_name="m")
    proto = message.inputs.add(name="x", datatype="INT8", shape=[1])
    proto.contents.int_contents.append(300)
    with pytest.raises(InvalidArgument, match="range of INT8"):
        READER.read(message.SerializeToString())


def test_what_would_become_far_more_than_was_sent_is_refused() -> None:
    """Empty strings, rows without elements, and fields without end."""
    strings = pb.ModelInferRequest(model_name="m", raw_input_contents=[bytes(1 << 23)])
    strings.inputs.add(name="x", datatype="BYTES", shape=[1 << 21])
    rows = pb.ModelInferRequest(model_name="m", raw_input_contents=[b""])
    rows.inputs.add(name="x", datatype="FP32", shape=[1 << 40, 0])
    outputs = pb.ModelInferRequest(model_name="m")
    for _ in range(70_000):
        outputs.outputs.add()
    for message in (strings, rows, outputs):
        with pytest.raises(ResourceExhausted):
            READER.read(message.SerializeToString(), DecodeOptions())
    with pytest.raises(InvalidArgument, match="cannot parse"):
        READER.read(b"\xff\xff garbage")
