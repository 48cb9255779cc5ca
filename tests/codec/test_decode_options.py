"""Limits on what a message may make the server allocate."""

from __future__ import annotations

import pytest

from tfs.codec.decode_options import DecodeOptions, FillBudget
from tfs.codec.tensor import tensor_view_of
from tfs.core.errors import ResourceExhausted
from tfs.proto.tensorflow.core.framework import tensor_pb2, types_pb2


@pytest.mark.parametrize("name", DecodeOptions.__slots__)
def test_a_negative_limit_is_refused(name: str) -> None:
    """Options are checked where they are made."""
    with pytest.raises(ValueError, match=name):
        DecodeOptions(**{name: -1})


def test_a_budget_is_shared_by_the_tensors_of_a_request() -> None:
    """Many small claims count together."""
    proto = tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT)
    proto.tensor_shape.dim.add(size=25)
    budget = FillBudget(limit_bytes=200)
    tensor_view_of(proto, budget)
    tensor_view_of(proto, budget)
    with pytest.raises(ResourceExhausted):
        tensor_view_of(proto, budget)
