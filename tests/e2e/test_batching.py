"""Requests that a real server joins, and models whose requests it must not join."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.e2e.serving import PATIENCE_S, Serving, run_tfs
from tfs.client import Client
from tfs.export import save_python

pytestmark = pytest.mark.timeout(240)

WIDTH = 4

SOURCE = """
import torch


class Servable:
    signatures = {
        "serving_default": {
            "method": "predict",
            "inputs": {"x": {"dtype": "float32", "shape": [-1, 4]}},
            "outputs": {"y": {"dtype": "float32", "shape": [-1, 4]}},
        }
    }

    def load(self, version):
        torch.manual_seed(3)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)
        ).eval()
        self.norm = torch.nn.BatchNorm1d(4).train()
        self.seen = torch.zeros(4)

    def predict(self, x):
        return BODY
"""

TAME = "self.layers(x)"
UNTAMED = {
    "train": "self.norm(self.layers(x)) if len(x) > 1 else self.layers(x)",
    "failing-alone": "self.norm(self.layers(x))",
    "dropping": "torch.nn.functional.dropout(self.layers(x) + 1, 0.5, training=True)",
    "random": "x + torch.randn_like(x)",
    "crossing": "torch.softmax(x @ x.T, -1) @ self.layers(x)",
    "largest": "x / x.abs().max()",
    "counting": "torch.full_like(x, len(x))",
    "ordered": "x.cumsum(0)",
    "sorted": "x.sort(0).values",
    "remembering": "x + self.seen + 0 * self.seen.copy_(x[-1])",
    "accumulating": "x + self.seen.add_(1)",
    "five": "x + (1.0 if len(x) > 4 else 0.0)",
}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """All of them behind one server, measured and placed as by default."""
    folder = tmp_path_factory.mktemp("models")
    sources = tmp_path_factory.mktemp("sources")
    for name, body in {"tame": TAME, **UNTAMED}.items():
        place = sources / name / "servable.py"
        place.parent.mkdir()
        place.write_text(SOURCE.replace("BODY", body))
        save_python(place, folder / name)
    with Serving(
        f"--model_repository={folder}", "--enable_batching", measures=True
    ) as server:
        for name in ("tame", *UNTAMED):
            server.wait_for(f"{name}/1 is available")
        yield server


def batching_of(serving: Serving, name: str) -> dict[str, Any]:
    """Returns what the server says of the default signature's batching."""
    code, text = run_tfs(
        "status", name, "--batching", "--json", f"--address={serving.address}"
    )
    assert code == 0, text
    (model,) = json.loads(text)["models"]
    (signature,) = model["versions"][0]["signatures"]
    found: dict[str, Any] = signature["batching"]
    return found


@pytest.mark.parametrize("name", UNTAMED)
def test_rows_that_depend_on_each_other_are_never_joined(
    serving: Serving, name: str
) -> None:
    """The version serves all the same, one request at a time, and its status says why."""
    found = batching_of(serving, name)
    assert not found.get("enabled")
    assert re.search("row|output", str(found["why"])), found
    with Client(serving.address, timeout_s=PATIENCE_S) as client:
        reply = client.predict(name, {"x": np.eye(2, WIDTH, dtype=np.float32)})
    assert reply.outputs["y"].shape == (2, WIDTH)


def test_joined_requests_get_the_answers_they_would_get_alone(
    serving: Serving,
) -> None:
    """Rows return to the right callers; the queue's numbers show that they met."""
    numbers = np.random.default_rng(5)
    inputs = [
        numbers.standard_normal((1 + index % 3, WIDTH), np.float32)
        for index in range(64)
    ]
    with (
        Client(serving.address, timeout_s=PATIENCE_S) as client,
        ThreadPoolExecutor(16) as callers,
    ):

        def ask(x: np.ndarray) -> np.ndarray:
            y: np.ndarray = client.predict("tame", {"x": x}).outputs["y"]
            return y

        alone = [ask(x) for x in inputs]
        together = list(callers.map(ask, inputs))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    found = batching_of(serving, "tame")
    assert found["enabled"]
    (queue,) = found["queues"]
    assert int(queue["num_completed_tasks"]) >= 2 * len(inputs)
    code, text = run_tfs("status", "--batching", f"--address={serving.address}")
    assert code == 0
    assert re.search(r"tame +1 +serving_default +0 +\d+", text), text
    assert re.search(r"largest .* unbatched: .*alone", text), text
