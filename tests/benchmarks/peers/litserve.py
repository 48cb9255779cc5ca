"""LitServe: FastAPI on uvicorn and uvloop, workers in processes behind ZeroMQ.

HTTP/1.1 with raw bytes, which is the only protocol that uvicorn has.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.benchmarks.peers.exchange import Exchange, from_bytes, to_bytes
from tests.benchmarks.peers.peer import Launch, Need, Setting
from tests.benchmarks.peers.workload import Workload


@dataclass(frozen=True, slots=True)
class LitServe:
    """See the module."""

    name: str = "litserve"
    needs: tuple[Need, ...] = ()
    num_ports: int = 1

    def exchange(self, workload: Workload, *, is_batching: bool) -> Exchange:
        return Exchange("/predict", to_bytes, from_bytes, is_http1=True)

    def launch(self, setting: Setting) -> Launch:
        port = str(setting.ports[0])
        return Launch(
            [
                *(str(setting.python), "-m", "tests.benchmarks.peers.litserve_server"),
                *(setting.workload.name, port, str(setting.max_batch_size)),
            ],
            "(starting on)",
            f"127.0.0.1:{port}",
        )
