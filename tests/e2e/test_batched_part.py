"""A served model that batches a part of itself."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.serving import Serving
from tfs.client import Client
from tfs.export import save_python
from tfs.testing.patience import PATIENCE_S

# Requests meet inside the model, so that what is asserted does not depend on timing.
SOURCE = """
import threading

import torch

from tfs.runtime.batched import batched


class Servable:
    concurrency = 4
    signatures = {
        "serving_default": {
            "method": "predict",
            "inputs": {"x": {"dtype": "float32", "shape": [-1, 1]}},
            "outputs": {"y": {"dtype": "float32", "shape": [-1, 2]}},
        }
    }

    def load(self, version):
        self.ready = threading.Barrier(4)
        self.part = batched(self.core, max_batch_size=16, timeout_s=3600.0)

    def core(self, x):
        return torch.cat([2 * x, torch.full_like(x, len(x))], 1)

    def predict(self, x):
        with self.part.session():
            self.ready.wait(60)
            return self.part(x)
"""


@pytest.mark.parametrize(
    ("transport", "backend"), [("grpcio", "inline"), ("express", "process")]
)
def test_requests_that_run_together_share_the_part(
    tmp_path: Path, transport: str, backend: str
) -> None:
    """Requests that run together share the part, in a thread or in a process."""
    place = tmp_path / "servable.py"
    place.write_text(SOURCE)
    save_python(place, tmp_path / "joined")
    with Serving(
        "--model_name=joined",
        f"--model_base_path={tmp_path}/joined",
        f"--grpc_transport={transport}",
        f"--interpreter_backend={backend}",
        "--enable_batching",
    ) as server:
        server.wait_for("joined/1 is available")
        with (
            Client(server.address, timeout_s=PATIENCE_S) as client,
            ThreadPoolExecutor(8) as callers,
        ):

            def ask(number: int) -> list[float]:
                x = np.array([[number]], np.float32)
                answer: list[float] = client.predict("joined", {"x": x}).outputs["y"][0]
                return list(answer)

            # twice as many callers as threads, and four requests for each
            answers = list(callers.map(ask, range(32)))
    assert answers == [[2.0 * number, 4.0] for number in range(32)]
