"""What travels to each server and back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.benchmarks import h2load
from tests.benchmarks.peers.exchange import Exchange, from_bytes, to_bytes
from tests.benchmarks.peers.tfs_server import Tfs
from tests.benchmarks.peers.triton import Triton
from tests.benchmarks.peers.workload import WORKLOADS
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import predict_pb2

ROW = np.array([1.0, -2.0, 0.5, 3.0], np.float32)
IDENTITY = WORKLOADS["identity"]


def load(*, num_answered: int = 3, num_data_bytes: int = 48) -> h2load.Load:
    """Returns what h2load counts of a server whose status it does not understand."""
    return h2load.Load(3, 0, num_answered, num_data_bytes, 1.0, (1, 1, 1))


def test_triton_is_asked_in_its_own_words() -> None:
    """A header in JSON, whose size is said beside it, and the row's bytes."""
    exchange = Triton().exchange(IDENTITY, is_batching=True)
    body = exchange.encode(ROW)
    size = int(exchange.headers["inference-header-content-length"])
    (tensor,) = json.loads(body[:size])["inputs"]
    assert tensor["shape"] == [1, 4]
    assert tensor["parameters"]["binary_data_size"] == len(body) - size == 16
    assert body[size:] == ROW.tobytes()


def test_triton_is_understood() -> None:
    """The values lie behind the header, whatever bytes they have."""
    exchange = Triton().exchange(IDENTITY, is_batching=True)
    reply = json.dumps({"outputs": [{"name": "y"}]}).encode() + ROW.tobytes()
    assert exchange.decode(reply).tolist() == ROW.tolist()


def test_tfs_is_asked_as_its_clients_do() -> None:
    """A Predict of the model by its name, with one row."""
    exchange = Tfs().exchange(WORKLOADS["mlp"], is_batching=False)
    body = exchange.encode(np.zeros(64, np.float32))
    request = predict_pb2.PredictRequest.FromString(body)
    assert request.model_spec.name == "mlp"
    assert [dim.size for dim in request.inputs["x"].tensor_shape.dim] == [1, 64]


@pytest.mark.parametrize("raw", [True, False])
def test_tfs_is_understood(raw: bool) -> None:
    """Typed values or raw bytes."""
    response = predict_pb2.PredictResponse()
    tensor = response.outputs["y"]
    tensor.dtype = types_pb2.DT_FLOAT
    if raw:
        tensor.tensor_content = ROW.tobytes()
    else:
        tensor.float_val.extend(ROW.tolist())
    decode = Tfs().exchange(IDENTITY, is_batching=True).decode
    assert decode(response.SerializeToString()).tolist() == ROW.tolist()


def test_answers_by_http1_are_counted_by_their_bytes() -> None:
    """A status without a phrase is nothing to h2load; a reply of another size is."""
    exchange = Exchange("/", to_bytes, from_bytes, is_http1=True)
    exchange.check(load(), reply_bytes=16)
    for wrong in (load(num_answered=2), load(num_data_bytes=47)):
        with pytest.raises(ValueError, match="of 3 requests answered"):
            exchange.check(wrong, reply_bytes=16)


def test_answers_by_http2_have_a_status() -> None:
    """There h2load knows it, and each has to be one of success."""
    exchange = Exchange("/", to_bytes, from_bytes)
    with pytest.raises(ValueError, match="0 of 3 requests done"):
        exchange.check(load(), reply_bytes=16)
