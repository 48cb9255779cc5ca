"""The reference server must be right before it may be beaten."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tests.benchmarks.reference_server import (
    Array,
    BatchThread,
    decode,
    encode,
    run_batch,
)
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import predict_pb2


def make_request(rows: Array, *, raw: bool) -> predict_pb2.PredictRequest:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "identity"
    tensor = request.inputs["x"]
    tensor.dtype = types_pb2.DT_FLOAT
    for size in rows.shape:
        tensor.tensor_shape.dim.add(size=size)
    if raw:
        tensor.tensor_content = rows.tobytes()
    else:
        tensor.float_val.extend(rows.ravel().tolist())
    return request


@pytest.mark.parametrize("raw", [True, False])
def test_a_reply_holds_the_requests_tensor(raw: bool) -> None:
    """Both encodings of a tensor are read, and the identity comes back."""
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    request = make_request(rows, raw=raw)
    reply = predict_pb2.PredictResponse.FromString(encode(request, *decode(request)))
    tensor = reply.outputs["x"]
    assert [dim.size for dim in tensor.tensor_shape.dim] == [2, 3]
    assert tensor.tensor_content == rows.tobytes()
    assert reply.model_spec.name == "identity"


def test_a_batch_gives_each_task_its_own_rows() -> None:
    """Joining and splitting keeps order and sizes; odd shapes run alone."""
    inputs = [np.full((n, 2), n, np.float32) for n in (1, 3, 2)]
    for given, got in zip(inputs, run_batch(inputs), strict=True):
        np.testing.assert_array_equal(given, got)
    odd = [*inputs, np.ones((1, 5), np.float32)]
    for given, got in zip(odd, run_batch(odd), strict=True):
        np.testing.assert_array_equal(given, got)


def test_the_batch_thread_answers_every_task() -> None:
    """Each future gets its own rows, whatever was batched with what."""

    async def submit_many() -> list[Array]:
        batches = BatchThread(asyncio.get_running_loop())
        inputs = [np.full((1, 1), i, np.float32) for i in range(100)]
        async with asyncio.timeout(20):
            return await asyncio.gather(*map(batches.submit, inputs))

    assert [float(rows[0, 0]) for rows in asyncio.run(submit_many())] == list(
        range(100)
    )
