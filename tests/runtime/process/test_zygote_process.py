"""The zygote's program before and without a conversation."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.process_host import is_gone, until
from tfs.core.loop.serving_loop import ServingLoop
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.process.zygote import Forked, Zygote
from tfs.runtime.process.zygote_process import ZygoteProcess, worker_environment
from tfs.testing.fake_clock import FakeClock

LINGER_S = 30.0
ROOT = Path(__file__).resolve().parents[3]

# Says nothing and ends with the channel, as a zygote does.
PROGRAM = """#!{python}
import os, socket, sys
os.close(int(sys.argv[-1]))
socket.socket(fileno=int(sys.argv[-2])).recv(1)
"""


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Puts a program that waits in the zygote's place."""
    path = tmp_path / "python"
    path.write_text(PROGRAM.format(python=sys.executable))
    path.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(path))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def loop(clock: FakeClock) -> Iterator[ServingLoop]:
    loop = ServingLoop(clock)
    yield loop
    loop.close()


class End:
    """When a program ended, and why."""

    def __init__(self, process: ZygoteProcess) -> None:
        self.why: list[str] = []
        self._ended = threading.Event()
        process.on_end(self._take)

    def _take(self, why: str) -> None:
        self.why.append(why)
        self._ended.set()

    def wait(self) -> None:
        assert self._ended.wait(30)


@pytest.mark.usefixtures("program")
def test_a_program_ends_with_its_channel() -> None:
    """Closing is all it takes, also before anybody spoke with it."""
    process = ZygoteProcess()
    end = End(process)
    process.close()
    process.close()
    end.wait()
    assert end.why == ["it ended with status 0"]


def test_whoever_asks_late_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that could not be started says so, and keeps nothing open."""
    monkeypatch.setattr("sys.executable", "/no/such/python")
    process = ZygoteProcess()
    End(process).wait()
    assert End(process).why == ["it cannot be started: No such file or directory"]
    num_open = len(os.listdir("/proc/self/fd"))
    process.close()
    assert len(os.listdir("/proc/self/fd")) == num_open - 2


@pytest.mark.usefixtures("program")
def test_a_started_zygote_nobody_wants_is_ended(
    loop: ServingLoop, clock: FakeClock
) -> None:
    """It takes the memory of one torch: a server whose models need none is rid of it."""
    process = ZygoteProcess()
    end = End(process)
    client = Zygote(loop, linger_s=LINGER_S, started=process)
    client.prepare()
    loop.step()
    assert process.channel.fileno() != -1
    clock.advance(LINGER_S)
    loop.step()
    assert process.channel.fileno() == -1
    end.wait()
    client.close()


@pytest.mark.usefixtures("program")
def test_a_started_zygote_that_was_never_adopted_ends_with_its_client(
    loop: ServingLoop,
) -> None:
    """A server that fails to start leaves nothing behind."""
    process = ZygoteProcess()
    end = End(process)
    client = Zygote(loop, started=process)
    client.close()
    client.prepare()
    end.wait()


def test_the_first_worker_is_wanted_of_the_started_zygote(
    loop: ServingLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What became of it is told to whoever waits, even if that was before he did."""
    monkeypatch.setattr("sys.executable", "/bin/false")
    process = ZygoteProcess()
    End(process).wait()
    client = Zygote(loop, started=process)
    client.prepare()
    answers: list[Forked | str | None] = []
    client.fork(WorkerOptions(), (), answers.append)

    def answered() -> bool:
        loop.step()
        return bool(answers)

    until(answered, "the answer")
    assert process.channel.fileno() == -1
    assert "the zygote is gone" in str(answers[0])
    client.close()


HOST_PROGRAM = """
import sys
from tfs.runtime.process.zygote_process import ZygoteProcess

sys.path.insert(0, sys.argv[1])
zygote = ZygoteProcess()
sys.stdin.read()
"""
NEVER_IMPORTED = """
import os, threading
print(os.getpid(), flush=True)
threading.Event().wait()
"""


def test_a_zygote_that_still_imports_ends_with_its_host(tmp_path: Path) -> None:
    """The import of torch takes a second, which no orphan is to have."""
    (tmp_path / "torch.py").write_text(NEVER_IMPORTED)
    with subprocess.Popen(
        [sys.executable, "-c", HOST_PROGRAM, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    ) as host:
        assert host.stdout is not None
        zygote = int(host.stdout.readline())
        host.kill()
        until(lambda: is_gone(zygote), "the end of the zygote")


def test_what_an_operator_sets_of_malloc_holds_in_workers_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Workers take malloc's settings from the server's environment before our own."""
    monkeypatch.delenv("MALLOC_TOP_PAD_", raising=False)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "4096")
    environment = worker_environment()
    assert environment["MALLOC_TRIM_THRESHOLD_"] == "4096"
    assert int(environment["MALLOC_TOP_PAD_"]) > 0
