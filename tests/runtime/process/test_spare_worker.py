"""A worker that is ready before anybody wants one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.runtime.answers import ask
from tests.runtime.packaged import floats, package, values
from tests.runtime.process_host import ProcessHost, kill_worker, process_host, until
from tests.runtime.zoo import Scale
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.process import spare_worker, zygote
from tfs.runtime.process.process_backend import ProcessBackend
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.spare_worker import SpareWorker
from tfs.runtime.process.worker_process import WorkerProcess
from tfs.runtime.process.zygote_process import ZygoteProcess
from tfs.testing.patience import PATIENCE_S

X = {"x": floats((1, 2))}


@pytest.fixture
def spare(host: ProcessHost, monkeypatch: pytest.MonkeyPatch) -> Iterator[SpareWorker]:
    """A spare that is made as soon as the loop comes round."""
    monkeypatch.setattr(spare_worker, "_QUIET_S", 0.01)
    spare = SpareWorker(host.loop, host.zygote, WorkerOptions())
    yield spare
    host.on_loop(spare.close)


def warm(spare: SpareWorker) -> int:
    until(lambda: spare.pid is not None, "a warm spare")
    assert spare.pid is not None
    return spare.pid


def test_a_crashed_worker_is_replaced_by_the_spare(
    host: ProcessHost, spare: SpareWorker, tmp_path: Path
) -> None:
    """The spare takes the models over, and answers as any worker does."""
    interpreter = host.interpreter(spare=spare)
    model = interpreter.load(package(tmp_path, Scale()))
    pid = warm(spare)
    kill_worker(interpreter)
    assert interpreter.pid == pid
    assert values(ask(model, X).outputs()["y"]) == [[2, 4]]
    assert warm(spare) != pid


def test_without_a_warm_spare_a_worker_is_forked(
    host: ProcessHost, spare: SpareWorker, tmp_path: Path
) -> None:
    """A spare that died is no obstacle, and another is made after the next use."""
    interpreter = host.interpreter(spare=spare)
    model = interpreter.load(package(tmp_path, Scale()))
    pid = warm(spare)
    os.kill(pid, signal.SIGKILL)
    until(lambda: spare.pid is None, "that its death is noticed")
    kill_worker(interpreter)
    assert interpreter.pid != pid
    assert values(ask(model, X).outputs()["y"]) == [[2, 4]]
    warm(spare)


def test_a_spare_that_has_just_died_is_not_taken(
    host: ProcessHost, spare: SpareWorker
) -> None:
    """A spare that has died is not taken, even before its death is reported."""
    host.interpreter(spare=spare).hold()
    pid = warm(spare)
    taken: list[WorkerProcess | None] = []

    def kill_and_take() -> None:
        process = psutil.Process(pid)  # before it may be gone
        process.kill()
        psutil.wait_procs([process], timeout=PATIENCE_S)
        taken.append(spare.take())

    host.on_loop(kill_and_take)
    assert taken == [None]


def test_a_spare_holds_no_descriptor_but_its_own(
    host: ProcessHost, spare: SpareWorker, caplog: pytest.LogCaptureFixture
) -> None:
    """Slab (and its map), an eventfd, two pipes, two sockets; warming left none."""
    host.interpreter(spare=spare).hold()
    pid = warm(spare)
    held = [
        os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")[3:]
    ]
    assert sorted(each.partition(":")[0] for each in held) == [
        "/memfd",
        "/memfd",
        "anon_inode",
        "pipe",
        "pipe",
        "socket",
        "socket",
    ]
    assert "stays_cold" not in caplog.text


def test_a_spare_is_not_kept_beyond_its_zygote(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where nobody wants the zygote any more, it ends, and the spare with it."""
    monkeypatch.setattr(spare_worker, "_QUIET_S", 0.01)
    with process_host(linger_s=0.0) as host:
        spare = SpareWorker(host.loop, host.zygote, WorkerOptions())
        interpreter = host.interpreter(spare=spare)
        model = interpreter.load(package(tmp_path, Scale()))
        pid = warm(spare)
        model.unload()
        until(lambda: not psutil.pid_exists(pid), "the end of the spare")
        assert spare.pid is None
        host.on_loop(spare.close)


def test_nothing_is_left_when_the_backend_closes(
    host: ProcessHost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The zygote and the spare end with the backend."""
    monkeypatch.setattr(spare_worker, "_QUIET_S", 0.01)
    monkeypatch.setattr(zygote, "ZygoteProcess", ZygoteProcess)  # its own
    before = set(psutil.Process().children(recursive=True))
    backend = ProcessBackend(host.loop, ProcessOptions(keeps_spare=True))
    backend.pool(1).load(package(tmp_path, Scale()))

    def started() -> set[psutil.Process]:
        return set(psutil.Process().children(recursive=True)) - before

    until(lambda: len(started()) == 3, "zygote, worker and spare")
    ours = started()
    backend.close()
    until(lambda: not any(each.is_running() for each in ours), "their end")
