"""Triton: the server that the package nvidia-pytriton bundles, with its Python backend.

HTTP/1.1, tensors as binary data: unbatched, and one request at a time, it costs Triton
a quarter less CPU than gRPC; batched they are alike. Batches wait for nothing.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from dataclasses import dataclass

import numpy as np

from tests.benchmarks.peers.exchange import Array, Exchange
from tests.benchmarks.peers.peer import ROOT, Launch, Need, Setting
from tests.benchmarks.peers.workload import Workload

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
HANDLER = ROOT / "tests/benchmarks/peers/triton_model.py"
CONFIG = """\
backend: "python"
max_batch_size: {max_batch_size}
input [{{ name: "x" data_type: TYPE_FP32 dims: [{inner}] }}]
output [{{ name: "y" data_type: TYPE_FP32 dims: [-1] }}]
instance_group [{{ kind: KIND_CPU count: 1 }}]
"""
DYNAMIC = "dynamic_batching { max_queue_delay_microseconds: 0 }\n"


@dataclass(frozen=True, slots=True)
class Triton:
    """See the module."""

    name: str = "triton"
    needs: tuple[Need, ...] = (
        # The backend's program for models links Python instead of starting it.
        Need(f"libpython{VERSION}.so.1.0", f"apt-get install libpython{VERSION}"),
    )
    num_ports: int = 2

    def exchange(self, workload: Workload, *, is_batching: bool) -> Exchange:
        header = json.dumps(
            {
                "inputs": [
                    {
                        "name": "x",
                        "shape": [1, *workload.row_shape],
                        "datatype": "FP32",
                        "parameters": {
                            "binary_data_size": math.prod(workload.row_shape) * 4
                        },
                    }
                ],
                "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
            }
        ).encode()

        def encode(row: Array) -> bytes:
            return header + row.tobytes()

        return Exchange(
            f"/v2/models/{workload.name}/infer",
            encode,
            decode,
            is_http1=True,
            headers={"inference-header-content-length": str(len(header))},
        )

    def launch(self, setting: Setting) -> Launch:
        name = setting.workload.name
        version = setting.folder / "models" / name / "1"
        version.mkdir(parents=True)
        shutil.copy(HANDLER, version / "model.py")
        config = CONFIG.format(
            max_batch_size=setting.max_batch_size,
            inner=", ".join(map(str, setting.workload.row_shape)),
        )
        (version.parent / "config.pbtxt").write_text(
            config + (DYNAMIC if setting.is_batching else "")
        )
        home = setting.packages / "pytriton" / "tritonserver"
        # The bundle has a program for each Python; the server takes the one beside
        # the backend.
        backend = setting.folder / "backends" / "python"
        shutil.copytree(home / "backends" / "python", backend)
        shutil.copy(
            home / "python_backend_stubs" / VERSION / "triton_python_backend_stub",
            backend,
        )
        http_port, grpc_port = map(str, setting.ports)
        libraries = setting.packages / "nvidia_pytriton.libs"
        return Launch(
            [
                str(home / "bin" / "tritonserver"),
                f"--model-repository={version.parents[1]}",
                f"--backend-directory={backend.parent}",
                *("--allow-metrics=false", "--exit-timeout-secs=5"),
                *("--http-address=127.0.0.1", f"--http-port={http_port}"),
                *("--grpc-address=127.0.0.1", f"--grpc-port={grpc_port}"),
                # Several of them may run at once.
                f"--backend-config=python,shm-region-prefix-name=peers{grpc_port}",
            ],
            "(Started HTTPService)",
            f"127.0.0.1:{http_port}",
            {
                "LD_LIBRARY_PATH": str(libraries),
                # The program for models finds its packages by the first python here.
                "PATH": f"{setting.python.parent}:{os.environ['PATH']}",
            },
        )


def decode(reply: bytes) -> Array:
    """Returns the values of the only output: they lie behind a header in JSON."""
    text = reply.decode("latin-1")  # a character for each byte
    _, end = json.JSONDecoder().raw_decode(text)
    return np.frombuffer(reply[end:], np.float32)
