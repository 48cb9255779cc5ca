"""How children ended is known before and after somebody has reaped them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tfs.runtime.process import zygote_process
from tfs.runtime.process.zygote_process import ExitStatuses, status_of

ENDS = {
    "exit": ("raise SystemExit(7)", 7 << 8),
    "signal": (
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        signal.SIGKILL,
    ),
}


class Child:
    """A program, and the pidfd of its process."""

    def __init__(self, code: str) -> None:
        self.process = subprocess.Popen([sys.executable, "-S", "-E", "-c", code])
        self.pid = self.process.pid
        self.pidfd = os.pidfd_open(self.pid)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.pidfd)


@pytest.fixture(params=ENDS)
def ended(request: pytest.FixtureRequest) -> Iterator[tuple[Child, int]]:
    """A process that has ended and waits to be reaped, and its status."""
    code, status = ENDS[request.param]
    child = Child(code)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    yield child, status
    child.end()


def test_who_has_not_been_reaped_is_asked(ended: tuple[Child, int]) -> None:
    """A process that is not reaped is asked, and is left for its parent to reap."""
    child, status = ended
    exits = ExitStatuses()
    assert exits.of(child.pid, child.pidfd) == status
    found = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert found is not None
    assert status_of(found) == status


def test_who_has_been_reaped_was_noted(ended: tuple[Child, int]) -> None:
    """Nobody else could say; without a note nobody knows."""
    child, status = ended
    exits = ExitStatuses()
    child.process.wait()
    assert exits.of(child.pid, child.pidfd) is None
    exits.note(child.pid, status)
    assert exits.of(child.pid, child.pidfd) == status


def test_who_runs_has_no_status() -> None:
    """Asking for the status of a process that runs does not wait for its end."""
    child = Child("import time; time.sleep(1000)")
    try:
        assert ExitStatuses().of(child.pid, child.pidfd) is None
    finally:
        child.end()


def test_notes_are_bounded(
    monkeypatch: pytest.MonkeyPatch, ended: tuple[Child, int]
) -> None:
    """The oldest go first; a number that comes again is new."""
    monkeypatch.setattr(zygote_process, "_STATUSES_KEPT", 2)
    child, status = ended
    child.process.wait()
    exits = ExitStatuses()
    exits.note(child.pid, 0)
    exits.note(-1, 0)
    exits.note(child.pid, status)
    exits.note(-2, 0)
    assert exits.of(child.pid, child.pidfd) == status
    exits.note(-3, 0)
    exits.note(-4, 0)
    assert exits.of(child.pid, child.pidfd) is None
