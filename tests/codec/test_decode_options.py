"""Limits on what a message may make the server allocate."""

from __future__ import annotations

import pytest

from tfs.codec.decode_options import DecodeOptions, FillBudget
from tfs.codec.predict_request import read_predict_request
from tfs.codec.tensor import tensor_view_of
from tfs.core.errors import ResourceExhausted
from tfs.proto.tensorflow.core.framework import tensor_pb2, types_pb2
from tfs.proto.tensorflow_serving.apis import predict_pb2


@pytest.mark.parametrize("name", DecodeOptions.__slots__)
def test_a_negative_limit_is_refused(name: str) -> None:
    """Options are checked where they are made."""
    with pytest.raises(ValueError, match=name):
        DecodeOptions(**{name: -1})


def test_what_costs_nothing_to_claim_has_a_lower_limit() -> None:
    """Elements that are not sent count twice; objects of what was sent count once."""
    options = DecodeOptions.of_fill(100)
    budget = FillBudget(options.max_tensor_bytes, None, options.max_fill_bytes)
    budget.take_objects(options.max_tensor_bytes - 100, "strings")
    budget.take(60, "x")
    with pytest.raises(ResourceExhausted, match=r"100 \(--max_filled_bytes\)"):
        budget.take(60, "y")
    with pytest.raises(ResourceExhausted, match=str(options.max_tensor_bytes)):
        budget.take_objects(60, "strings")
    assert DecodeOptions.of_fill(1 << 30).max_tensor_bytes == 1 << 30


def test_room_for_many_strings_is_taken_before_they_are_read() -> None:
    """So a request that has to wait for it makes no objects in vain; nor is it refused."""
    proto = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING)
    proto.tensor_shape.dim.add(size=40_000)
    proto.string_val.extend([b"word"] * 40_000)
    request = predict_pb2.PredictRequest()
    request.inputs["x"].CopyFrom(proto)
    reserved: list[int] = []
    read = read_predict_request(request.SerializeToString(), reserve=reserved.append)
    assert len(read.inputs["x"].data) == 40_000
    assert reserved == [read.filled_bytes]


def test_a_budget_is_shared_by_the_tensors_of_a_request() -> None:
    """Many small claims count together."""
    proto = tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT)
    proto.tensor_shape.dim.add(size=25)
    budget = FillBudget(limit_bytes=200)
    tensor_view_of(proto, budget)
    tensor_view_of(proto, budget)
    with pytest.raises(ResourceExhausted):
        tensor_view_of(proto, budget)
