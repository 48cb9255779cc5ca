"""Requests that a real server joins, and models whose requests it must not join."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.serving import Serving, run_command
from tests.runtime.process_host import until
from tfs.client import Client, RetryPolicy
from tfs.core.errors import (
    DeadlineExceeded,
    InvalidArgument,
    ServingError,
    Unavailable,
)
from tfs.export import Packaging, save_python
from tfs.server.placing.batcher import read_batching_file
from tfs.testing.patience import PATIENCE_S

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
    "dropping": "torch.nn.functional.dropout(self.layers(x) + 1, 0.5, training=True)",
    "crossing": "torch.softmax(x @ x.T, -1) @ self.layers(x)",
    "remembering": "x + self.seen + 0 * self.seen.copy_(x[-1])",
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
    """Returns what the server says of the default signature's batching.

    While many versions wait they serve unmeasured, and so unbatched; waits for that
    to end.
    """
    while True:
        code, text = run_command(
            "status", name, "--batching", "--json", f"--address={serving.address}"
        )
        assert code == 0, text
        (model,) = json.loads(text)["models"]
        (signature,) = model["versions"][0]["signatures"]
        found: dict[str, Any] = signature["batching"]
        if not found.get("why", "").endswith("not shown to be independent"):
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
    batching_of(serving, "crossing")
    code, text = run_command("status", "--batching", f"--address={serving.address}")
    assert code == 0
    assert re.search(r"tame +1 +serving_default +0 +\d+", text), text
    assert re.search(r"crossing .* unbatched: .*row", text), text


TUNED = """
max_batch_size { value: 16 }
allowed_batch_sizes: 4
allowed_batch_sizes: 12
allowed_batch_sizes: 16
policy { low_priority { ageing_micros: 60000000 } }
"""

# One row at a time, and one more may wait.
NARROW = """
max_batch_size { value: 1 }
max_enqueued_batches { value: 1 }
num_batch_threads { value: 1 }
"""

STEPPED = "(__import__('time').sleep({12: 0.02}.get(len(x), 0.001)), x)[1]"
STRICT = """x
    def validate(self, x):
        if x[0] < 0:
            raise ValueError("negative")
"""
# Never so quick that it is called on the serving loop, where all would wait for it.
SLOW = "(__import__('time').sleep(0.002 + float(x[0, 0])), x)[1]"


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Versions that bring parameters of their own."""
    folder = tmp_path_factory.mktemp("configured")
    sources = tmp_path_factory.mktemp("configured-sources")
    models = {
        "stepped": (STEPPED, TUNED),
        "strict": (STRICT, None),
        "slow": (SLOW, NARROW),
    }
    for name, (body, parameters) in models.items():
        place = sources / name / "servable.py"
        place.parent.mkdir()
        place.write_text(SOURCE.replace("BODY", body))
        example = {
            "x": np.linspace(0, 0.01, 2 * WIDTH, dtype=np.float32).reshape(2, -1)
        }
        save_python(
            place,
            folder / name,
            packaging=Packaging(batching_parameters=parameters),
            example_inputs=example,
        )
    with Serving(
        f"--model_repository={folder}", "--enable_batching", measures=True
    ) as server:
        for name in models:
            server.wait_for(f"{name}/1 is available")
        yield server


def rows(*firsts: float) -> dict[str, np.ndarray]:
    """Returns rows that begin with these numbers."""
    x = np.ones((len(firsts), WIDTH), np.float32)
    x[:, 0] = firsts
    return {"x": x}


def test_a_batch_is_padded_to_the_size_that_was_measured_to_be_cheapest(
    configured: Serving,
) -> None:
    """Ten rows become sixteen and not twelve, for twelve take longer. Every allowed
    size runs before the version is available; a busy machine may need a few more.
    """
    added = 0
    with Client(configured.address, timeout_s=PATIENCE_S) as client:
        for _ in range(20):
            before = batching_of(configured, "stepped")
            reply = client.predict("stepped", rows(*range(10)))
            assert list(reply.outputs["y"][:, 0]) == list(range(10))
            after = batching_of(configured, "stepped")
            added = _padding(after) - _padding(before)
            if added == 6:
                break
            for num_rows in (12, 16):
                client.predict("stepped", rows(*range(num_rows)))
    assert after["parameters"]["allowed_batch_sizes"] == ["4", "12", "16"]
    assert added == 6


def test_one_bad_row_fails_its_own_request_only(configured: Serving) -> None:
    """Whoever it shared a batch with is answered."""
    with (
        Client(configured.address, timeout_s=PATIENCE_S) as client,
        ThreadPoolExecutor(12) as callers,
    ):

        def ask(number: int) -> str:
            try:
                reply = client.predict("strict", rows(number, number))
            except InvalidArgument as error:
                return error.message
            assert list(reply.outputs["y"][:, 0]) == [number, number]
            return ""

        numbers = [index if index % 4 else -1 for index in range(48)]
        answers = list(callers.map(ask, numbers))
    for number, answer in zip(numbers, answers, strict=True):
        assert ("negative" in answer) == (number < 0), (number, answer)


def test_a_full_queue_says_when_to_retry_and_the_expired_cost_nothing(
    configured: Serving,
) -> None:
    """One runs, one waits; the others are told at once, with a time."""
    told: list[ServingError] = []
    with (
        Client(
            configured.address,
            timeout_s=PATIENCE_S,
            retry=RetryPolicy(max_attempts=1),
        ) as client,
        ThreadPoolExecutor(8) as callers,
    ):

        def ask(seconds: float, timeout_s: float) -> None:
            try:
                client.predict("slow", rows(seconds), timeout_s=timeout_s)
            except ServingError as error:
                told.append(error)

        client.predict("slow", rows(0.0))  # no call waits for a connection
        # All at once: which of them runs is nobody's business. The first to run holds
        # the rest up for longer than they may wait.
        for future in [callers.submit(ask, 2.0, 1.0) for _ in range(8)]:
            future.result(PATIENCE_S)
    refused = [error for error in told if isinstance(error, Unavailable)]
    assert refused
    assert all(error.retry_after_s for error in refused)
    assert "full" in refused[0].message
    late = [error for error in told if isinstance(error, DeadlineExceeded)]
    assert len(late) + len(refused) == 8

    def num_left() -> int:
        (queue,) = batching_of(configured, "slow")["queues"]
        num_expired = int(queue.get("num_expired_tasks", 0))
        return num_expired + int(queue.get("num_cancelled_tasks", 0))

    # One of the late was running; who waited left without compute. The server's clock
    # may be a little behind the client's.
    until(lambda: num_left() == len(late) - 1, "the end of those who waited")


def test_an_example_may_have_more_rows_than_the_operator_lets_in(
    configured: Serving,
) -> None:
    """The version does not fail on it: nobody sends so many."""
    code, text = run_command(
        "status", "slow", "--json", f"--address={configured.address}"
    )
    assert code == 0, text
    (version,) = json.loads(text)["models"][0]["versions"]
    assert "own example" not in json.dumps(version)


def test_a_served_model_is_tuned_by_its_name(
    configured: Serving, tmp_path: Path
) -> None:
    """The server says where its primary version lies; parameters come out."""
    out = tmp_path / "tuned"
    code, text = run_command(
        "tune", "stepped", f"--address={configured.address}", "--budget_s=0",
        "--max_batch_size=16", f"--out={out}",
    )  # fmt: skip
    assert code == 0, text
    options = read_batching_file(str(out / "batching_params.pbtxt"))
    # Sixteen, unless the machine was busy while its millisecond passed.
    assert 1 <= options.queue.max_batch_rows <= 16
    code, text = run_command("tune", "absent", f"--address={configured.address}")
    assert code == 1
    assert "absent" in text


def _padding(batching: dict[str, Any]) -> int:
    """Returns how many rows were added in the only queue."""
    (queue,) = batching["queues"]
    return int(queue.get("num_padding_rows", 0))
