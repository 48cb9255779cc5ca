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
    process_host,
    until,
)
from tests.runtime.zoo import Scale
from tfs.core.servable_id import ServableId
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.platforms import platform_imports
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.placement import IN_PROCESS_IMPORT_S
from tfs.runtime.process import spare_worker
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.process_pool import ProcessPool
from tfs.runtime.process.spare_worker import SpareWorker

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
    plain, one, two = (host.interpreter() for _ in range(3))
    plain.load(package(tmp_path, Scale()))
    zygote = host.zygote.pid
    pool = ProcessPool("pool", [one, two], ProcessOptions())
    model = pool.load(graph(tmp_path))
    assert values(ask(model, X).outputs()["y"]) == [[2, 4]]
    # A worker was spared the imports; the server's own process would not be.
    assert model.import_s is not None
    assert model.import_s > IN_PROCESS_IMPORT_S
    assert host.zygote.pid == zygote
    assert psutil.Process(zygote).num_threads() == 1
    kill_worker(one)
    assert values(ask(model, X).outputs()["y"]) == [[2, 4]]


def test_a_graph_is_served_on_by_the_next_zygotes_workers(
    host: ProcessHost, tmp_path: Path
) -> None:
    """Its workers need no zygote, and the next zygote does the imports again."""
    one = host.interpreter()
    model = one.load(graph(tmp_path))
    pid, zygote = one.pid, host.zygote.pid
    assert zygote is not None
    os.kill(zygote, signal.SIGKILL)
    until(lambda: is_gone(zygote), "the death")
    assert values(ask(model, X).outputs()["y"]) == [[2, 4]]
    assert one.pid == pid
    kill_worker(one)
    assert values(ask(model, X).outputs()["y"]) == [[2, 4]]


def test_a_spare_without_a_platforms_imports_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spare that is forked after them is."""
    monkeypatch.setattr(spare_worker, "_QUIET_S", 0.01)
    with process_host() as host:
        spare = SpareWorker(host.loop, host.zygote, WorkerOptions())
        plain, one = host.interpreter(spare=spare), host.interpreter(spare=spare)
        plain.load(package(tmp_path, Scale()))
        until(lambda: spare.pid is not None, "a spare without imports")
        first = spare.pid
        model = one.load(graph(tmp_path))
        assert one.pid != first
        until(lambda: spare.pid not in (None, first), "a spare with imports")
        second = spare.pid
        kill_worker(one)
        assert one.pid == second
        assert values(ask(model, X).outputs()["y"]) == [[2, 4]]
        host.on_loop(spare.close)


def test_a_module_that_is_gone_spoils_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The names are torch's own, which another torch may not have."""
    monkeypatch.setattr(
        platform_imports, "MODULES", {"torch_export": ("no.such.module", "json")}
    )
    monkeypatch.setattr(platform_imports, "_spent_s", {})
    assert platform_imports.imported_s("torch_export") == 0
    platform_imports.import_for("torch_export")
    assert platform_imports.imported_s("torch_export") > 0


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
    for platform in platform_imports.MODULES:
        platform_imports.import_for(platform)
    assert not asked
