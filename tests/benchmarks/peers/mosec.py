"""MOSEC: an HTTP server in Rust, workers in Python behind Unix sockets.

Raw bytes, by HTTP/2 where it batches, which then costs MOSEC a fifth less CPU, and else
by HTTP/1.1, which is a little quicker. The least wait for a batch that it takes is 1 ms.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.benchmarks.peers.exchange import Exchange, from_bytes, to_bytes
from tests.benchmarks.peers.peer import Launch, Need, Setting
from tests.benchmarks.peers.workload import Workload


@dataclass(frozen=True, slots=True)
class Mosec:
    """See the module."""

    name: str = "mosec"
    needs: tuple[Need, ...] = ()
    num_ports: int = 1

    def exchange(self, workload: Workload, *, is_batching: bool) -> Exchange:
        return Exchange("/inference", to_bytes, from_bytes, is_http1=not is_batching)

    def launch(self, setting: Setting) -> Launch:
        target = f"127.0.0.1:{setting.ports[0]}"
        return Launch(
            [
                *(str(setting.python), "-m", "tests.benchmarks.peers.mosec_server"),
                *("--address", "127.0.0.1", "--port", str(setting.ports[0])),
                *("--timeout", "60000", "--capacity", "4096"),
                *("--path", str(setting.folder / "ipc")),
            ],
            "(http service is running)",
            target,
            {
                "MODEL": setting.workload.name,
                "MAX_BATCH_SIZE": str(setting.max_batch_size),
            },
        )
