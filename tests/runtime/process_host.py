"""A loop and a zygote for tests of processes, shared where a test allows it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import psutil

from tfs.core.loop.serving_loop import ServingLoop
from tfs.runtime.process.process_interpreter import ProcessInterpreter
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.spare_worker import SpareWorker
from tfs.runtime.process.worker_state import WorkerState
from tfs.runtime.process.zygote import Zygote
from tfs.testing.patience import PATIENCE_S


class ProcessHost:
    """What stands in for a server: its loop, its zygote, its interpreters."""

    def __init__(self, loop: ServingLoop, zygote: Zygote) -> None:
        self.loop = loop
        self.zygote = zygote
        self.interpreters: list[ProcessInterpreter] = []

    def interpreter(
        self,
        options: ProcessOptions | None = None,
        spare: SpareWorker | None = None,
    ) -> ProcessInterpreter:
        """Returns a new interpreter; the host closes it."""
        name = f"process-{len(self.interpreters)}"
        interpreter = ProcessInterpreter(name, self.loop, self.zygote, options, spare)
        self.interpreters.append(interpreter)
        return interpreter

    def on_loop(self, fn: Callable[[], None]) -> None:
        """Runs ``fn`` on the loop and waits for it."""
        done = threading.Event()

        def run() -> None:
            try:
                fn()
            finally:
                done.set()

        self.loop.post(run)
        assert done.wait(PATIENCE_S)

    def close_interpreters(self) -> None:
        """Closes what ``interpreter`` made."""
        for interpreter in self.interpreters:
            interpreter.close(time.monotonic() + PATIENCE_S)
        self.interpreters.clear()


@contextlib.contextmanager
def process_host(linger_s: float = 30.0) -> Iterator[ProcessHost]:
    """A running host; closes everything, and fails if a loop callback raised."""
    loop = ServingLoop(name="test-loop")
    loop.start()
    zygote = Zygote(loop, linger_s=linger_s)
    host = ProcessHost(loop, zygote)
    try:
        yield host
    finally:
        host.close_interpreters()
        host.on_loop(host.zygote.close)
        loop.close(time.monotonic() + PATIENCE_S)
    assert loop.num_failures == 0


def until(condition: Callable[[], bool], what: str) -> None:
    """Waits for something another process does; fails after a generous time.

    Looks the less often the longer that takes: it may need this very processor.
    """
    begun_s = time.monotonic()
    pause = threading.Event()
    while not condition():
        waited_s = time.monotonic() - begun_s
        assert waited_s < PATIENCE_S, f"not in time: {what}"
        pause.wait(min(0.002 + waited_s / 10, 0.05))


def pid_of(interpreter: ProcessInterpreter) -> int:
    """Returns the process of an interpreter that is ready, once it is."""
    until(lambda: interpreter.state is WorkerState.READY, "a ready worker")
    pid = interpreter.pid
    assert pid is not None
    return pid


def wait_for_successor(interpreter: ProcessInterpreter, pid: int | None) -> None:
    """Waits until another worker than ``pid`` is ready."""
    until(
        # Both are read while the loop changes them: the one may be gone before the other.
        lambda: (
            interpreter.pid not in (None, pid)
            and interpreter.state is WorkerState.READY
        ),
        "the next worker",
    )


def kill_worker(interpreter: ProcessInterpreter) -> None:
    """Kills an interpreter's worker, and waits for the next one."""
    pid = interpreter.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for_successor(interpreter, pid)


def is_gone(pid: int) -> bool:
    """Whether the process has ended; init may take its time to reap an orphan."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
