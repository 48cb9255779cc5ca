"""How long a request's tensors are is known without decoding it."""

from __future__ import annotations

import struct

import pytest

from tfs.codec.claimed_size import claimed_bytes
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import predict_pb2


def request(*sizes: int, dtype: int = types_pb2.DT_FLOAT) -> predict_pb2.PredictRequest:
    made = predict_pb2.PredictRequest()
    made.model_spec.name = "m"
    tensor = made.inputs["x"]
    tensor.dtype = dtype  # type: ignore[assignment]
    for size in sizes:
        tensor.tensor_shape.dim.add(size=size)
    return made


def test_one_value_may_stand_for_megabytes() -> None:
    """All tensors count, each by its shape and dtype, whatever was sent of them."""
    asked = request(10, 262_144)
    asked.inputs["x"].float_val.append(1.5)
    assert claimed_bytes(asked.SerializeToString()) == 10 << 20
    asked.inputs["y"].dtype = types_pb2.DT_INT64
    asked.inputs["y"].tensor_shape.dim.add(size=3)
    asked.inputs["y"].tensor_content = struct.pack("<3q", 1, 2, 3)
    assert claimed_bytes(memoryview(asked.SerializeToString())) == (10 << 20) + 24
    assert claimed_bytes(request().SerializeToString()) == 4
    assert claimed_bytes(request(0, 1 << 40).SerializeToString()) == 0


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff\xff",
        request(-5, 2).SerializeToString(),
        request(*[1 << 62] * 100).SerializeToString(),
        request(*[1] * 100_000).SerializeToString(),
        request(2, dtype=types_pb2.DT_RESOURCE).SerializeToString(),
        request(1 << 30, dtype=types_pb2.DT_STRING).SerializeToString(),
    ],
    ids=["empty", "garbage", "negative", "overflow", "dims", "resource", "strings"],
)
def test_what_cannot_be_decoded_claims_nothing(message: bytes) -> None:
    """Decoding refuses it, at once; and strings take what was sent."""
    assert claimed_bytes(message) == 0
