from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import cast

import pytest

from tests.runtime.answers import ask
from tests.runtime.packaged import floats, package, signature, values
from tests.runtime.process_host import ProcessHost, is_gone, until
from tests.runtime.zoo import Spawner
from tfs.core.dtype import INT64
from tfs.core.signature import TensorSpec
from tfs.runtime.interpreter import InterpreterModel
from tfs.runtime.process.process_model import ProcessModel

X = {"x": floats((1, 2))}
PIDS = signature({"y": TensorSpec(INT64, (-1, 2))})
SIGNATURES = {
    "serving_default": PIDS,
    "lasting": PIDS,
    "nested": PIDS,
    "crash": signature(),
}


def load(host: ProcessHost, folder: Path) -> ProcessModel:
    return host.pool().load(package(folder, Spawner(), SIGNATURES))


def pids_of(model: InterpreterModel, name: str = "serving_default") -> list[int]:
    [pids] = values(ask(model, X, name).outputs()["y"])
    return cast("list[int]", pids)


def test_a_fork_of_a_model_answers_nothing(host: ProcessHost, tmp_path: Path) -> None:
    """A child that returns from the model ends; only the worker takes calls."""
    model = load(host, tmp_path)
    worker = model.pid
    for _ in range(5):
        child, _ = pids_of(model)
        assert child > 0
        until(lambda pid=child: is_gone(pid), "the end of the copy")  # type: ignore[misc]
    assert model.pid == worker
    assert model.num_deaths == 0


def test_a_fork_of_a_fork_is_no_error(host: ProcessHost, tmp_path: Path) -> None:
    """What a copy closed already is not closed again by its own copies."""
    model = load(host, tmp_path)
    assert pids_of(model, "nested") == [0, 0]


@pytest.mark.parametrize("end", ["crash", "unload", "crash without a zygote"])
def test_what_a_model_started_ends_with_its_worker(
    host: ProcessHost, tmp_path: Path, end: str
) -> None:
    """Forked children and programs alike, however the worker ends."""
    model = load(host, tmp_path)
    started = pids_of(model, "lasting")
    assert not any(map(is_gone, started))
    if end == "unload":
        model.unload()
    else:
        if "zygote" in end:
            assert host.zygote.pid is not None
            os.kill(host.zygote.pid, signal.SIGKILL)
        ask(model, X, "crash").error()
    until(lambda: all(map(is_gone, started)), "the end of what the model started")
