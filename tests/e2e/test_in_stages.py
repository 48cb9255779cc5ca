"""A served model whose requests join running batches between its stages."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from tests.e2e.serving import Serving, run_command
from tests.models.served import Slow, TwoStreams
from tfs.client import Client
from tfs.core.errors import ServingError
from tfs.export import Packaging, save
from tfs.testing.patience import PATIENCE_S


@dataclass
class Served:
    server: Serving
    backend: str

    def status(self, model: str) -> dict[str, object]:
        code, text = run_command(
            "status", model, "--json", f"--address={self.server.address}"
        )
        assert code == 0, text
        version: dict[str, object] = json.loads(text)["models"][0]["versions"][0]
        return version


@pytest.fixture(scope="module", params=["front", "inline", "process"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    base = tmp_path_factory.mktemp("models")
    packaging = Packaging(
        batching_parameters="max_batch_size { value: 8 } policy { layered { mode: AUTO } }"
    )
    models = {
        "stages": (nn.Sequential(Slow(), Slow(), Slow()), "input"),
        "whole": (TwoStreams(), "x"),
    }
    for name, (model, key) in models.items():
        example = {key: torch.rand(3, 4)}
        save(model.eval(), example, str(base / name), 1, packaging=packaging)
    config = base / "models.config"
    config.write_text(
        "model_config_list {"
        + "".join(
            f'config {{ name: "{name}" base_path: "{base / name}" }}' for name in models
        )
        + "}"
    )
    with Serving(
        f"--model_config_file={config}",
        f"--interpreter_backend={request.param}",
        "--enable_batching",
    ) as server:
        server.wait_for("stages/1 is available")
        server.wait_for("whole/1 is available")
        yield Served(server, request.param)


def test_requests_that_meet_get_their_own_answers(served: Served) -> None:
    """However they were joined; the status says by which rule they are."""
    with (
        Client(served.server.address, timeout_s=PATIENCE_S) as client,
        ThreadPoolExecutor(12) as callers,
    ):

        def ask(number: int) -> list[float]:
            x = np.full((1 + number % 3, 4), number, np.float32)
            outputs = client.predict("stages", {"input": x}).outputs
            (value,) = outputs.values()
            assert value.shape == x.shape
            return [float(each) for each in value[:, 0]]

        answers = list(callers.map(ask, range(240)))
    for number, answer in enumerate(answers):
        assert answer == pytest.approx([number + 3.0] * (1 + number % 3))
    text = json.dumps(served.status("stages"))
    assert "in stages, by the rule" in text, text


def test_what_cannot_be_cut_is_served_whole_and_says_why(served: Served) -> None:
    """Two tensors cross everywhere in this one."""
    text = json.dumps(served.status("whole"))
    assert "it is computed whole: nowhere does a single tensor" in text


def test_a_killed_interpreter_fails_only_what_it_held(served: Served) -> None:
    """In the middle of runs that others join; what comes later is answered."""
    if served.backend != "process":
        pytest.skip("an interpreter in the server cannot be killed by itself")
    placement = served.status("stages")["placement"]
    assert isinstance(placement, dict)
    pid = int(placement["interpreters"][0]["pid"])
    with (
        Client(served.server.address, timeout_s=PATIENCE_S) as client,
        ThreadPoolExecutor(8) as callers,
    ):

        def ask(number: int) -> bool:
            if number == 20:
                os.kill(pid, signal.SIGKILL)
            x = np.full((1, 4), number, np.float32)
            try:
                (value,) = client.predict("stages", {"input": x}).outputs.values()
            except ServingError:
                return False
            assert value[0, 0] == pytest.approx(number + 3.0)
            return True

        answered = list(callers.map(ask, range(120)))
    assert answered.count(False) <= 8
    assert all(answered[60:])
    assert "in stages, by the rule" in json.dumps(served.status("stages"))
