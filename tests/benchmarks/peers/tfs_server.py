"""TFS itself, started as its users start it and driven as its peers are.

The small models run on the serving loop and ResNet-18 on a thread, which is where
`--interpreter_backend=auto` puts them on a quiet machine; said outright, a row means the
same thing in every run. Over HTTP, rows travel as NumPy's files.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import torch

import tfs.export
from tests.benchmarks.peers.exchange import Array, Exchange
from tests.benchmarks.peers.peer import Launch, Need, Setting
from tests.benchmarks.peers.workload import Workload
from tests.benchmarks.rpc import PREDICT, request_body
from tfs.proto.tensorflow_serving.apis import predict_pb2

BACKENDS = {"identity": "front", "mlp": "front", "resnet18": "inline"}
BATCHING = """\
max_batch_size {{ value: {max_batch_size} }}
batch_timeout_micros {{ value: 0 }}
num_batch_threads {{ value: 1 }}
max_enqueued_batches {{ value: 1000 }}
"""


@dataclass(frozen=True, slots=True)
class Tfs:
    """See the module."""

    name: str = "tfs"
    needs: tuple[Need, ...] = ()
    num_ports: int = 1
    is_http: bool = False

    def exchange(self, workload: Workload, *, is_batching: bool) -> Exchange:
        def encode(row: Array) -> bytes:
            inputs = torch.from_numpy(row).reshape(1, *workload.row_shape)
            return request_body(inputs, workload.name)

        if not self.is_http:
            return Exchange(PREDICT, encode, decode, is_grpc=True)

        def encode_file(row: Array) -> bytes:
            file = io.BytesIO()
            np.save(file, row.reshape(1, *workload.row_shape))
            return file.getvalue()

        return Exchange(
            f"/v1/models/{workload.name}:predict",
            encode_file,
            lambda reply: np.load(io.BytesIO(reply)).ravel(),
            is_http1=True,
            headers={"content-type": "application/x-npy"},
        )

    def launch(self, setting: Setting) -> Launch:
        workload = setting.workload
        base_path = setting.folder / workload.name
        # Two rows, and not alike: what can not be told apart is not batched.
        examples = torch.randn(2, *workload.row_shape)
        tfs.export.save(workload.build(), examples, base_path, version=1)
        parameters = setting.folder / "batching.pbtxt"
        parameters.write_text(BATCHING.format(max_batch_size=setting.max_batch_size))
        batching = ["--enable_batching=false"]
        if setting.is_batching:
            batching = [
                *("--enable_batching=true", f"--batching_parameters_file={parameters}"),
            ]
        return Launch(
            [
                *(str(setting.python), "-m", "tfs", "serve", "--log_level=warning"),
                *("--grpc_host=127.0.0.1", "--any_port=true", "--num_interpreters=1"),
                *(f"--model_name={workload.name}", f"--model_base_path={base_path}"),
                f"--interpreter_backend={BACKENDS[workload.name]}",
                f"--rest_api_port={setting.ports[0]}",
                *batching,
            ],
            r"(127\.0\.0\.1:\d+)",
            f"127.0.0.1:{setting.ports[0]}" if self.is_http else "",
        )


def decode(reply: bytes) -> Array:
    """Returns the values of the only output."""
    response = predict_pb2.PredictResponse.FromString(reply)
    (tensor,) = response.outputs.values()
    if tensor.tensor_content:
        return np.frombuffer(tensor.tensor_content, np.float32)
    return np.array(tensor.float_val, np.float32)
