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
            "outputs": {"y": {"dtype": "float32", "shape": [-1, 3]}},
        }
    }

    def load(self, version):
        self.ready = threading.Barrier(4)
        self.encode = batched(self.double, max_batch_size=16, timeout_s=3600.0)
        self.decode = batched(self.triple, max_batch_size=16)

    def double(self, x):
        return torch.cat([2 * x, torch.full_like(x, len(x))], 1)

    def triple(self, y):
        return torch.cat([3 * y[:, :1], y[:, 1:], torch.full_like(y[:, :1], len(y))], 1)

    def predict(self, x):
        with self.encode.session():
            self.ready.wait(60)
            y = self.encode(x)
        if int(x[0, 0]) % 2:
            return self.decode(y)
        return torch.cat([y, torch.zeros_like(x)], 1)
"""


@pytest.mark.parametrize(
    ("transport", "backend"), [("grpcio", "inline"), ("express", "process")]
)
def test_requests_that_run_together_share_each_part(
    tmp_path: Path, transport: str, backend: str
) -> None:
    """Batches of two parts form independently: half of the requests go on to the second."""
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
    for number, (value, num_encoded, num_decoded) in enumerate(answers):
        assert num_encoded == 4.0
        assert value == (6.0 * number if number % 2 else 2.0 * number)
        assert 1.0 <= num_decoded <= 4.0 if number % 2 else num_decoded == 0.0
