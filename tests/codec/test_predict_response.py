"""PredictResponse: what we write, protobuf reads as what was meant."""

from __future__ import annotations

import struct

import pytest

from tests.codec.samples import SMALL_VIEWS, VIEWS, content_proto, typed_proto
from tfs.codec import predict_response
from tfs.codec.predict_response import PredictReplies, Reply
from tfs.core.dtype import FLOAT32, INT64, STRING, DType
from tfs.core.servable_id import ServableId
from tfs.core.tensor_view import TensorView
from tfs.proto.tensorflow_serving.apis import predict_pb2


def whole(reply: Reply) -> bytes:
    """Returns a reply in one piece."""
    return reply if isinstance(reply, bytes) else b"".join(reply)


ID = ServableId("m", 3)
TYPED = PredictReplies()
AS_CONTENT = PredictReplies(as_tensor_content=True)
WHO = (ID.name, ID.version, "s")


def write(
    outputs: dict[str, TensorView],
    servable_id: ServableId = ID,
    signature: str = "s",
    replies: PredictReplies = TYPED,
) -> Reply:
    answerer = servable_id.name, servable_id.version, signature
    quick = replies.write_if_quick(answerer, outputs)
    if quick is None:
        return replies.write(answerer, outputs)
    return quick


def expected(
    outputs: dict[str, TensorView], *, as_tensor_content: bool = False
) -> predict_pb2.PredictResponse:
    message = predict_pb2.PredictResponse()
    message.model_spec.name = "m"
    message.model_spec.version.value = 3
    message.model_spec.signature_name = "serving_default"
    for name, view in outputs.items():
        content = as_tensor_content and view.dtype is not STRING
        proto = content_proto(view) if content else typed_proto(view)
        message.outputs[name].CopyFrom(proto)
    return message


def written(
    outputs: dict[str, TensorView], *, as_tensor_content: bool = False
) -> predict_pb2.PredictResponse:
    return predict_pb2.PredictResponse.FromString(
        whole(write(outputs, ID, "serving_default", PredictReplies(as_tensor_content)))
    )


def bits(message: predict_pb2.PredictResponse) -> bytes:
    """Returns the message in one form; NaNs never equal as messages do."""
    return message.SerializeToString(deterministic=True)


@pytest.mark.parametrize("view", VIEWS + SMALL_VIEWS, ids=repr)
@pytest.mark.parametrize("as_tensor_content", [False, True])
def test_every_dtype_is_written(view: TensorView, as_tensor_content: bool) -> None:
    """Alone and with others, the first time and from remembered prefixes."""
    for outputs in ({"y": view}, {"y": view, "z": VIEWS[0], "b": view}):
        for _ in range(2):
            message = written(outputs, as_tensor_content=as_tensor_content)
            wanted = expected(outputs, as_tensor_content=as_tensor_content)
            assert bits(message) == bits(wanted)


def test_a_reply_without_outputs_still_names_the_model() -> None:
    """An empty map is no outputs, not an error."""
    assert written({}) == expected({})


@pytest.mark.parametrize("version", [0, 1, 1 << 62])
def test_the_version_is_always_set(version: int) -> None:
    """Version 0 is present too."""
    view = TensorView(FLOAT32, (1,), bytes(4))
    for _ in range(2):
        message = predict_pb2.PredictResponse.FromString(
            whole(write({"y": view}, ServableId("m", version)))
        )
        assert message.model_spec.HasField("version")
        assert message.model_spec.version.value == version


def test_replies_that_differ_in_one_thing_are_kept_apart() -> None:
    """Model, version, signature, output name, dtype and shape all count."""
    data = struct.pack("<4f", 1, 2, 3, 4)
    seen = set()
    for _ in range(2):
        for model in ("m", "n"):
            for version in (1, 2):
                for signature in ("s", "t"):
                    for name in ("y", "z"):
                        for shape in ((4,), (2, 2)):
                            view = TensorView(FLOAT32, shape, data)
                            message = predict_pb2.PredictResponse.FromString(
                                whole(
                                    write(
                                        {name: view},
                                        ServableId(model, version),
                                        signature,
                                    )
                                )
                            )
                            spec = message.model_spec
                            assert (spec.name, spec.version.value) == (model, version)
                            assert spec.signature_name == signature
                            dims = message.outputs[name].tensor_shape.dim
                            assert tuple(d.size for d in dims) == shape
                            seen.add(message.SerializeToString(deterministic=True))
    assert len(seen) == 32


def test_views_of_any_buffer_are_written() -> None:
    """Rows cut from a batch are memoryviews; slabs are bytearrays."""
    data = struct.pack("<4f", 1, 2, 3, 4)
    outputs = [
        whole(write({"y": TensorView(FLOAT32, (4,), buffer)}))
        for buffer in (data, bytearray(data), memoryview(data), memoryview(data))
    ]
    assert len(set(outputs)) == 1


def test_remembered_prefixes_are_bounded() -> None:
    """Ever new shapes leave a bounded memory behind."""
    for size in range(5_000):
        view = TensorView(FLOAT32, (size, 0), b"")
        write({"y": view}, ServableId("m", size))
    for cache in (
        predict_response._frames,
        predict_response._entries,
        predict_response._specs,
    ):
        assert len(cache) <= predict_response._MAX_REMEMBERED


def test_many_elements_that_nobody_can_change_are_not_copied() -> None:
    """They are a part of the reply, the very object."""
    data = bytes(range(256)) * 400
    view = TensorView(FLOAT32, (1, len(data) // 4), data)
    small = TensorView(FLOAT32, (1, 1), bytearray(4))
    for outputs in ({"y": view}, {"y": view, "z": small}, {"y": view, "z": view}):
        for _ in range(2):  # the first of its shape, and one like another before
            parts = write(outputs, ServableId("uncopied", 1))
            assert isinstance(parts, tuple)
            assert sum(part is data for part in parts) == list(outputs.values()).count(
                view
            )
            assert not any(isinstance(part, bytearray) for part in parts)
            read = predict_pb2.PredictResponse.FromString(whole(parts))
            assert set(read.outputs) == set(outputs)


def test_two_outputs_that_nobody_can_change_are_not_copied() -> None:
    """Outputs that nobody can change are not copied, the first time included."""
    data = bytes(80_000)
    views = {name: TensorView(FLOAT32, (20_000,), data) for name in ("a", "b")}
    parts = write(views, ID, "serving_default", AS_CONTENT)
    assert isinstance(parts, tuple)
    assert sum(part is data for part in parts) == 2
    response = predict_pb2.PredictResponse.FromString(b"".join(parts))
    assert response == expected(views, as_tensor_content=True)


@pytest.mark.parametrize("dtype", [INT64, STRING], ids=str)
def test_a_reply_that_takes_long_is_not_written_at_once(dtype: DType) -> None:
    """Many varints, or strings, are for another thread; few are not."""
    few: bytes | tuple[bytes, ...] = (b"a", b"b")
    if dtype is INT64:
        few = struct.pack("<2q", 1, -1)
    for num, is_quick in ((2, True), (10_000, False)):
        view = TensorView(dtype, (num,), few * (num // 2))
        views = {"x": TensorView(FLOAT32, (1,), bytes(4)), "y": view}
        written_whole = whole(write(views, ID, "serving_default"))
        assert predict_pb2.PredictResponse.FromString(written_whole) == expected(views)
        reply = TYPED.write_if_quick((ID.name, ID.version, "serving_default"), views)
        assert reply == (written_whole if is_quick else None)


def test_raw_numbers_are_written_at_once_however_many() -> None:
    """Raw numbers are written at once, because content is as quick as floats."""
    view = TensorView(INT64, (10_000,), bytes(80_000))
    assert TYPED.write_if_quick(WHO, {"y": view}) is None
    assert AS_CONTENT.write_if_quick(WHO, {"y": view}) is not None


@pytest.mark.parametrize("is_view", [False, True])
def test_elements_that_may_change_are_copied(is_view: bool) -> None:
    """A model or a slab may write to its memory before the reply is sent."""
    data = bytearray(200_000)
    view = TensorView(FLOAT32, (1, 50_000), memoryview(data) if is_view else data)
    for _ in range(2):
        reply = write({"y": view}, ServableId("changing", 1))
        assert isinstance(reply, bytes)


@pytest.mark.parametrize("as_tensor_content", [False, True])
@pytest.mark.parametrize("num_rows", [1, 3])
@pytest.mark.parametrize("dtype_and_data", VIEWS, ids=repr)
def test_many_replies_are_the_rows_of_one(
    dtype_and_data: TensorView, num_rows: int, as_tensor_content: bool
) -> None:
    """Each is what its rows alone would be; what needs packing is left to the caller."""
    view, writer = dtype_and_data, PredictReplies(as_tensor_content)
    if isinstance(view.data, tuple):
        joined = TensorView(view.dtype, (10, 3), view.data * 5)
    else:
        joined = TensorView(view.dtype, (10, 3), bytes(view.data) * 5)
    for outputs in ({"y": joined}, {"y": joined, "z": joined}):
        for data in (joined, TensorView(FLOAT32, (10, 2), bytes(range(80)))):
            outputs["y"] = data
            replies = writer.write_all(WHO, outputs, num_rows, 3)
            if replies is None:
                names = {each.dtype.name for each in outputs.values()}
                assert names - {"float32", "float64", "complex64", "complex128"}
                continue
            assert replies == [
                whole(
                    write(
                        {
                            n: v.rows(i * num_rows, (i + 1) * num_rows)
                            for n, v in outputs.items()
                        },
                        replies=writer,
                    )
                )
                for i in range(3)
            ]


def test_many_large_or_empty_replies_are_left_to_the_caller() -> None:
    """They are worth sending from where they lie, one by one."""
    large = TensorView(FLOAT32, (2, 50_000), bytes(400_000))
    empty = TensorView(FLOAT32, (2, 0), b"")
    for view in (large, empty):
        assert TYPED.write_all(WHO, {"y": view}, 1, 2) is None
