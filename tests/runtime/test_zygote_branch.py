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
from tfs.runtime.guest.version_files import VersionFiles
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.placement import IN_PROCESS_IMPORT_S
from tfs.runtime.process.process_backend import ProcessBackend
from tfs.runtime.process.process_interpreter import ProcessInterpreter
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.process_pool import MakeTemplate, ProcessPool
from tfs.runtime.process.version_template import VersionTemplate

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


def maker_of(interpreter: ProcessInterpreter) -> int:
    pid = interpreter.forked_by
    assert pid is not None
    return pid


def test_workers_of_one_platform_share_its_imports(
    host: ProcessHost, tmp_path: Path
) -> None:
    """They are forked by a branch of the zygote, the first as well as the next."""
    plain, one, two = (host.interpreter() for _ in range(3))
    plain.load(package(tmp_path, Scale()))
    pool = ProcessPool("pool", [one, two], ProcessOptions())
    model = pool.load(graph(tmp_path))
    assert values(ask(model, X).outputs()["y"]) == [[2, 4]]
    # A worker was spared the imports; the server's own process would not be.
    assert model.import_s is not None
    assert model.import_s > IN_PROCESS_IMPORT_S
    assert maker_of(plain) == host.zygote.pid
    branch = maker_of(one)
    assert branch not in (host.zygote.pid, os.getpid())
    assert branch == host.zygote.branch_pid("torch_export")
    assert psutil.Process(branch).num_threads() == 1
    assert maker_of(two) == branch
    kill_worker(one)
    assert maker_of(one) == branch
    assert values(ask(model, X).outputs()["y"]) == [[2, 4]]


@pytest.mark.parametrize("dies", ["branch", "zygote"])
def test_workers_of_a_branch_serve_on_without_what_made_them(
    host: ProcessHost, tmp_path: Path, dies: str
) -> None:
    """A branch needs no zygote, its workers neither; the next one finds what it needs."""
    one = host.interpreter()
    model = one.load(graph(tmp_path))
    pid, branch, zygote = one.pid, maker_of(one), host.zygote.pid
    assert zygote is not None
    victim = branch if dies == "branch" else zygote
    os.kill(victim, signal.SIGKILL)
    until(lambda: is_gone(victim), "the death")
    assert values(ask(model, X).outputs()["y"]) == [[2, 4]]
    assert one.pid == pid
    kill_worker(one)
    assert values(ask(model, X).outputs()["y"]) == [[2, 4]]
    assert maker_of(one) == host.zygote.branch_pid("torch_export")
    assert (maker_of(one) == branch) == (dies == "zygote")


def templates(
    host: ProcessHost, options: WorkerOptions
) -> tuple[list[VersionTemplate], MakeTemplate]:
    """Returns what makes templates, and those that it will have made."""
    made: list[VersionTemplate] = []

    def make(source: ModelSource, files: VersionFiles) -> VersionTemplate:
        made.append(VersionTemplate(host.loop, host.zygote, options, source, files))
        return made[-1]

    return made, make


@pytest.mark.parametrize(
    "worker",
    [
        pytest.param(WorkerOptions(), id="as the server"),
        pytest.param(
            WorkerOptions(nice=5, user_id=65534, group_id=65534),
            id="as nobody",
            marks=pytest.mark.skipif(
                os.geteuid() != 0, reason="only root can become somebody else"
            ),
        ),
        pytest.param(WorkerOptions(memory_limit_bytes=256 << 20), id="with a limit"),
    ],
)
def test_the_next_worker_has_what_its_template_loaded(
    host: ProcessHost, tmp_path: Path, worker: WorkerOptions
) -> None:
    """It is forked with the graph in memory, and runs as any worker of its options.

    So does the template, as loading runs what a version holds; it ends with the version.
    """
    options = ProcessOptions(worker=worker)
    one, two = host.interpreter(options), host.interpreter(options)
    made, make = templates(host, worker)
    pool = ProcessPool("pool", [one, two], options, make_template=make)
    model = pool.load(graph(tmp_path))
    (template,) = made
    until(lambda: template.forks is not None, "the template")
    assert template.pid is not None
    process = psutil.Process(template.pid)
    assert process.num_threads() == 1
    for _ in range(2):
        kill_worker(one)
        assert maker_of(one) == template.pid
        assert values(ask(model.members[0][1], X).outputs()["y"]) == [[2, 4]]
        assert one.pid is not None
        for pid in (one.pid, template.pid):
            runs = psutil.Process(pid)
            assert runs.nice() == min(19, psutil.Process().nice() + worker.nice)
            assert set(runs.uids()) == {worker.user_id or os.geteuid()}
        assert ends_with_its_host(one.pid)
    until(lambda: one.stats().num_restarts == 2, "both deaths")
    model.unload()
    until(lambda: not process.is_running(), "the end of the template")
    assert values_after_reload(pool, tmp_path) == [[2, 4]]


def test_a_backend_keeps_templates_without_a_spare(
    host: ProcessHost, tmp_path: Path
) -> None:
    """A graph is back in the time of a fork where no process more is wanted."""
    backend = ProcessBackend(host.loop, ProcessOptions(keeps_templates=True))
    try:
        pool = backend.pool(1)
        pool.load(graph(tmp_path))
        (one,) = pool.interpreters
        branch = maker_of(one)
        until(lambda: pool._templates[0].forks is not None, "the template")
        kill_worker(one)
        assert maker_of(one) != branch
        assert backend.spare_pid is None
    finally:
        backend.close()


def ends_with_its_host(pid: int) -> bool:
    """Whether it has the kernel kill its group when the host's pipe closes."""
    infos = (Path(f"/proc/{pid}/fdinfo") / fd for fd in os.listdir(f"/proc/{pid}/fd"))
    flags = [int(each.read_text().split("flags:")[1].split()[0], 8) for each in infos]
    return any(each & os.O_ASYNC for each in flags)


def values_after_reload(pool: ProcessPool, folder: Path) -> list[object]:
    source = ModelSource(
        ServableId("graph", 2),
        str(folder),
        "torch_export",
        {},
        {"serving_default": signature()},
    )
    model = pool.load(source)
    answer = ask(model, X).outputs()["y"]
    model.unload()
    return values(answer)


def test_the_workers_of_a_template_serve_on_without_it(
    host: ProcessHost, tmp_path: Path
) -> None:
    """It is made anew for those to come."""
    one = host.interpreter()
    made, make = templates(host, WorkerOptions())
    pool = ProcessPool("pool", [one], ProcessOptions(), make_template=make)
    model = pool.load(graph(tmp_path))
    until(lambda: made[0].pid is not None, "the template")
    first = made[0].pid
    assert first is not None
    kill_worker(one)
    assert maker_of(one) == first
    pid = one.pid
    os.kill(first, signal.SIGKILL)
    until(lambda: made[0].pid not in (None, first), "the next template")
    assert values(ask(model, X).outputs()["y"]) == [[2, 4]]
    assert one.pid == pid
    model.unload()


def test_a_branch_ends_with_its_host(tmp_path: Path) -> None:
    """It outlives the zygote that made it, and nothing else."""
    with process_host() as host:
        one = host.interpreter()
        one.load(graph(tmp_path))
        branch = psutil.Process(maker_of(one))
        assert host.zygote.pid is not None
        os.kill(host.zygote.pid, signal.SIGKILL)
    until(lambda: not branch.is_running(), "the end of the branch")


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


def test_no_import_or_warm_up_of_a_branch_asks_for_devices(
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
