"""What a good engineer writes in an afternoon with stock parts: the reference server.

grpcio.aio on uvloop, requests and replies as upb messages, tensors as numpy arrays, one
batch thread. It serves the identity model for any name, without versions, deadlines or
counters, so whoever uses less CPU than this does more with it. Run as
`python -m tests.benchmarks.reference_server`; it announces itself as the echo server
does. Needs the extra `bench`.

It is a strong baseline on purpose: the batch thread takes everything that waits and
wakes the loop once per batch, and replies carry raw bytes, which costs numpy a copy
where typed fields would cost a Python float per element.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import numpy as np
import numpy.typing as npt

from tests.benchmarks.echo_server import serve_until_sigterm
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import predict_pb2

if TYPE_CHECKING:
    _Handler = grpc.GenericRpcHandler[predict_pb2.PredictRequest, bytes]
else:  # generic in the stubs only
    _Handler = grpc.GenericRpcHandler

PREDICT = "/tensorflow.serving.PredictionService/Predict"
MAX_BATCH_ROWS = 64

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Task:
    """One request's input and where its output goes."""

    rows: Array
    done: asyncio.Future[Array]


class BatchThread:
    """Joins what waits into batches and runs the model on them. Thread-safe."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="batch", daemon=True)
        self._thread.start()

    def submit(self, rows: Array) -> asyncio.Future[Array]:
        """Returns the future of the model's output; called on the loop."""
        done = self._loop.create_future()
        self._tasks.put(Task(rows, done))
        return done

    def _run(self) -> None:
        while True:
            batch = [self._tasks.get()]
            num_rows = len(batch[0].rows)
            while num_rows < MAX_BATCH_ROWS:
                try:
                    batch.append(self._tasks.get_nowait())
                except queue.Empty:
                    break
                num_rows += len(batch[-1].rows)
            outputs = run_batch([task.rows for task in batch])
            self._loop.call_soon_threadsafe(_finish, batch, outputs)


def run_batch(inputs: list[Array]) -> list[Array]:
    """Joins along axis 0, runs the identity model, and splits again.

    Inputs of different inner shapes run one by one.
    """
    if len({rows.shape[1:] for rows in inputs}) > 1:
        return [model(rows) for rows in inputs]
    joined = inputs[0] if len(inputs) == 1 else np.concatenate(inputs)
    ends = np.cumsum([len(rows) for rows in inputs])
    return np.split(model(joined), ends[:-1])


def model(rows: Array) -> Array:
    return rows


def _finish(batch: list[Task], outputs: list[Array]) -> None:
    for task, output in zip(batch, outputs, strict=True):
        if not task.done.cancelled():
            task.done.set_result(output)


def decode(request: predict_pb2.PredictRequest) -> tuple[str, Array]:
    """Returns the first input's name and its float32 array."""
    name, tensor = next(iter(request.inputs.items()))
    shape = [dim.size for dim in tensor.tensor_shape.dim]
    if tensor.tensor_content:
        flat = np.frombuffer(tensor.tensor_content, np.float32)
    else:
        flat = np.array(tensor.float_val, np.float32)
    return name, flat.reshape(shape)


def encode(request: predict_pb2.PredictRequest, name: str, rows: Array) -> bytes:
    """Returns the reply: the output under `name`, the model spec of the request."""
    response = predict_pb2.PredictResponse()
    response.model_spec.name = request.model_spec.name
    response.model_spec.signature_name = "serving_default"
    response.model_spec.version.value = 1
    tensor = response.outputs[name]
    tensor.dtype = types_pb2.DT_FLOAT
    for size in rows.shape:
        tensor.tensor_shape.dim.add(size=size)
    tensor.tensor_content = rows.tobytes()
    return response.SerializeToString()


class ReferenceHandler(_Handler):
    """Answers Predict. Confined to the loop."""

    def __init__(self, batches: BatchThread) -> None:
        self._batches = batches
        self._handler = grpc.unary_unary_rpc_method_handler(
            self._predict,
            request_deserializer=predict_pb2.PredictRequest.FromString,
        )

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[predict_pb2.PredictRequest, bytes] | None:
        return self._handler if handler_call_details.method == PREDICT else None

    async def _predict(
        self, request: predict_pb2.PredictRequest, context: object
    ) -> bytes:
        name, rows = decode(request)
        return encode(request, name, await self._batches.submit(rows))


async def serve() -> None:
    """Serves until SIGTERM."""
    batches = BatchThread(asyncio.get_running_loop())
    await serve_until_sigterm(ReferenceHandler(batches))


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve())
