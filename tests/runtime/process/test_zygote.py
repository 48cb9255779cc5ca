from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.runtime.process_host import until
from tfs.core.loop.serving_loop import ServingLoop
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.process.zygote import Forked, Zygote
from tfs.runtime.process.zygote_process import ZygoteProcess, import_path


@pytest.fixture
def loop() -> Iterator[ServingLoop]:
    loop = ServingLoop()
    yield loop
    loop.close()


def test_a_program_that_cannot_run_fails_every_request(
    loop: ServingLoop, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    """The reason reaches whoever wanted a worker, and a later request tries again."""
    monkeypatch.setattr("sys.executable", f"{tmp_path}/no-such-python")
    zygote = Zygote(loop)
    answers: list[Forked | str | None] = []

    def answered() -> bool:
        loop.step()
        return bool(answers)

    for _ in range(2):
        answers.clear()
        zygote.fork(WorkerOptions(), (), answers.append)
        until(answered, "the answer")
        assert isinstance(answers[0], str)
        assert "No such file" in answers[0]
    zygote.close()


def test_a_program_that_ends_at_once_fails_every_request(
    loop: ServingLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zygote that dies before it is ready is noticed by its channel."""
    monkeypatch.setattr("sys.executable", "/bin/false")
    zygote = Zygote(loop)
    answers: list[Forked | str | None] = []
    zygote.fork(WorkerOptions(), (), answers.append)
    zygote.fork(WorkerOptions(), (), answers.append)

    def answered() -> bool:
        loop.step()
        return len(answers) == 2

    until(answered, "the answers")
    assert all(isinstance(answer, str) for answer in answers)
    zygote.close()
    zygote.fork(WorkerOptions(), (), answers.append)
    assert answers[2] == "the server is shutting down"


def test_a_program_without_a_thread_fails_the_request_and_is_tried_again(
    loop: ServingLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever wanted a worker would wait until its load had taken too long."""

    def refuse(thread: object) -> None:
        raise RuntimeError("can't start new thread")

    zygote = Zygote(loop)
    answers: list[Forked | str | None] = []
    num_open = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as limited:
        limited.setattr("threading.Thread.start", refuse)
        limited.setattr("tfs.runtime.process.zygote.ZygoteProcess", ZygoteProcess)
        zygote.fork(WorkerOptions(), (), answers.append)
    why = os.strerror(errno.EAGAIN)
    assert answers == [f"the zygote cannot be started: {why}"]
    assert len(os.listdir("/proc/self/fd")) == num_open
    zygote.fork(WorkerOptions(), (), answers.append)
    assert len(answers) == 1  # it starts
    zygote.close()


def test_what_this_process_imports_its_children_can_import() -> None:
    """The package itself comes first, whatever the working directory."""
    paths = import_path()
    assert os.path.isdir(os.path.join(paths[0], "tfs", "core"))
    assert all(os.path.isabs(path) for path in paths)
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize(
    "wrong",
    [
        {"spin_us": -1},
        {"slab_bytes": 100},
        {"slab_bytes": (1 << 20) + 1},
        {"memory_limit_bytes": -1},
        {"nice": 20},
        {"oom_score_adj": 1001},
    ],
)
def test_worker_options_are_checked(wrong: dict[str, Any]) -> None:
    """A value that means nothing is refused where it is given."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        WorkerOptions(**wrong)
