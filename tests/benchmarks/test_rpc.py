"""The rpc area's own logic: which replies are right, what runs where, what counts."""

from __future__ import annotations

import sys

import pytest
import torch

from tests.benchmarks import rpc
from tests.benchmarks.server_process import ServerProcess
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import predict_pb2

INPUTS = torch.tensor([[1.0, -2.0, 0.5, 3.0]])


def make_reply(inputs: torch.Tensor, *, raw: bool = False) -> bytes:
    """Returns a reply with `inputs` as its only output."""
    response = predict_pb2.PredictResponse()
    tensor = response.outputs["y"]
    tensor.dtype = types_pb2.DT_FLOAT
    for size in inputs.shape:
        tensor.tensor_shape.dim.add(size=size)
    if raw:
        tensor.tensor_content = inputs.numpy().tobytes()
    else:
        tensor.float_val.extend(inputs.reshape(-1).tolist())
    return response.SerializeToString()


@pytest.mark.parametrize("raw", [True, False])
def test_a_reply_is_right_if_it_is_what_torch_computes(raw: bool) -> None:
    """Values and shape, in either encoding, and nothing beside them."""
    assert rpc.is_right(make_reply(INPUTS, raw=raw), INPUTS)
    assert not rpc.is_right(make_reply(INPUTS + 1, raw=raw), INPUTS)
    assert not rpc.is_right(make_reply(INPUTS.reshape(2, 2), raw=raw), INPUTS)
    assert not rpc.is_right(b"", INPUTS)


def test_a_server_runs_on_its_core_with_all_its_threads() -> None:
    """What is pinned is pinned before it starts threads or children."""
    script = (
        "import os, signal, threading\n"
        "threads = []\n"
        "def look(): threads.append(os.sched_getaffinity(0))\n"
        "thread = threading.Thread(target=look); thread.start(); thread.join()\n"
        "print('listening on', sorted(threads[0])[0], flush=True)\n"
        "signal.pause()\n"
    )
    (core,), _ = rpc.split_cores()
    with ServerProcess([sys.executable, "-c", script], cores={core}) as server:
        assert server.target == str(core)
