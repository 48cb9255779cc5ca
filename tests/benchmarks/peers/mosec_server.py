"""MOSEC serving one model; runs in MOSEC's environment.

`MODEL` and `MAX_BATCH_SIZE` come by environment: MOSEC parses the command line itself
and starts its workers from this file.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tests.benchmarks.peers.workload import ServedModel

if TYPE_CHECKING:  # MOSEC is in an environment of its own

    class Worker:
        """What MOSEC calls: see its documentation."""

    Server: Any
else:
    from mosec import Server, Worker

MAX_BATCH_SIZE = int(os.environ.get("MAX_BATCH_SIZE", "1"))
MIN_WAIT_MS = 1  # the least that MOSEC takes; 0 means its default of 10


class ModelWorker(Worker):
    """Passes bytes through: the model takes and returns them."""

    def __init__(self) -> None:
        self._model = ServedModel(os.environ["MODEL"])

    def deserialize(self, data: bytes) -> bytes:
        return data

    def serialize(self, data: bytes) -> bytes:
        return data

    def forward(self, data: Any) -> Any:
        """Takes one body where batching is off, else a list of them."""
        if MAX_BATCH_SIZE == 1:
            return self._model.run([data])[0]
        return self._model.run(data)


if __name__ == "__main__":
    server = Server()
    server.append_worker(
        ModelWorker,
        num=1,
        max_batch_size=MAX_BATCH_SIZE,
        max_wait_time=MIN_WAIT_MS if MAX_BATCH_SIZE > 1 else 0,
        timeout=60,
    )
    server.run()
