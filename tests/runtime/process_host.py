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
from tfs.runtime.process.process_backend import ProcessPool
from tfs.runtime.process.process_model import ProcessModel
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.worker import WorkerState
from tfs.runtime.process.zygote import Zygote
from tfs.testing.patience import PATIENCE_S


class ProcessHost:
    """What stands in for a server: its loop, its zygote, its pools."""

    def __init__(self, loop: ServingLoop, zygote: Zygote) -> None:
        self.loop = loop
        self.zygote = zygote
        self._pools: list[ProcessPool] = []

    def pool(
        self,
        options: ProcessOptions | None = None,
        num_processes: int = 1,
        may_grow: Callable[[], bool] | None = None,
    ) -> ProcessPool:
        """Returns a new pool; the host closes it."""
        pool = ProcessPool(
            f"pool-{len(self._pools)}",
            self.loop,
            self.zygote,
            options or ProcessOptions(),
            num_processes,
            may_grow,
        )
        self._pools.append(pool)
        return pool

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

    def close_pools(self) -> None:
        """Closes what ``pool`` made."""
        for pool in self._pools:
            pool.close(time.monotonic() + PATIENCE_S)
        self._pools.clear()


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
        host.close_pools()
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


def ready_pid(model: ProcessModel) -> int | None:
    """Returns the first process of a version if it answers calls, else None."""
    pids = model.pids
    is_ready = model.states[0] is WorkerState.READY
    return pids[0] if pids and is_ready else None


def pid_of(model: ProcessModel) -> int:
    """Returns the first process of a version, once it is ready."""
    until(lambda: ready_pid(model) is not None, "a ready worker")
    pid = ready_pid(model)
    assert pid is not None
    return pid


def wait_for_successor(model: ProcessModel, pid: int) -> None:
    """Waits until another worker than ``pid`` is ready."""
    until(lambda: ready_pid(model) not in (None, pid), "the next worker")


def kill_worker(model: ProcessModel) -> None:
    """Kills a version's first worker, and waits for the next one."""
    pid = pid_of(model)
    os.kill(pid, signal.SIGKILL)
    wait_for_successor(model, pid)


def is_gone(pid: int) -> bool:
    """Whether the process has ended; init may take its time to reap an orphan."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
