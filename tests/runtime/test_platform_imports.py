"""Workers of platforms whose imports take long."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
import torch

from tests.runtime.answers import ask
from tests.runtime.packaged import floats, package, signature, values
from tests.runtime.process_host import (
    ProcessHost,
    is_gone,
    kill_worker,
    until,
)
from tests.runtime.zoo import Scale
from tfs.core.servable_id import ServableId
from tfs.runtime.guest import guest_model
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.placement import IN_PROCESS_IMPORT_S

X = {"x": floats((1, 2))}


def graph(folder: Path) -> ModelSource:
    """Returns a version that doubles its input, as a graph."""
    program = torch.export.export(
        Scale().eval(),
        (torch.ones(2, 2),),
        dynamic_shapes=({0: torch.export.Dim("n")},),
    )
    torch.export.save(program, folder / "model.pt2")
    signatures = {"serving_default": signature()}
    return ModelSource(
        ServableId("graph", 1), str(folder), "torch_export", {}, signatures
    )


def test_the_zygote_imports_what_a_platform_needs_once(
    host: ProcessHost, tmp_path: Path
) -> None:
    """Its workers share that, the first as well as the next; nobody else waits for it."""
    host.pool().load(package(tmp_path, Scale()))
    zygote = host.zygote.pid
    model = host.pool(num_processes=2).load(graph(tmp_path))
    assert values(ask(model, X).outputs()["y"]) == [[2, 4]]
    # A worker was spared the imports; the server's own process would not be.
    assert model.loaded.import_s is not None
    assert model.loaded.import_s > IN_PROCESS_IMPORT_S
    assert host.zygote.pid == zygote
    assert psutil.Process(zygote).num_threads() == 1
    kill_worker(model)
    assert values(ask(model, X).outputs()["y"]) == [[2, 4]]


def test_a_graph_is_served_on_by_the_next_zygotes_workers(
    host: ProcessHost, tmp_path: Path
) -> None:
    """Its workers need no zygote, and the next zygote does the imports again."""
    model = host.pool().load(graph(tmp_path))
    pid, zygote = model.pid, host.zygote.pid
    assert zygote is not None
    os.kill(zygote, signal.SIGKILL)
    until(lambda: is_gone(zygote), "the death")
    assert values(ask(model, X).outputs()["y"]) == [[2, 4]]
    assert model.pid == pid
    kill_worker(model)
    assert values(ask(model, X).outputs()["y"]) == [[2, 4]]


def test_a_module_that_is_gone_spoils_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The names are torch's own, which another torch may not have."""
    monkeypatch.setattr(
        guest_model, "IMPORTED_AHEAD", {"torch_export": ("no.such.module", "json")}
    )
    monkeypatch.setattr(guest_model, "_spent_s", {})
    assert guest_model.imported_s("torch_export") == 0
    guest_model.import_for("torch_export")
    assert guest_model.imported_s("torch_export") > 0


def test_no_import_of_a_zygote_asks_for_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that has asked CUDA for its devices forks none that could use them."""
    asked: list[str] = []

    def ask_for(name: str, answer: object) -> None:
        def note(*_args: object, **_keywords: object) -> object:
            asked.append(name)
            return answer

        monkeypatch.setattr(torch.cuda, name, note)

    ask_for("is_available", answer=False)
    ask_for("device_count", answer=0)
    ask_for("current_device", answer=0)
    ask_for("_lazy_init", answer=None)
    for platform in guest_model.IMPORTED_AHEAD:
        guest_model.import_for(platform)
    assert not asked
