"""The process backend of a server: one zygote, and the pools made from it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tfs.core.loop.serving_loop import ServingLoop
from tfs.runtime.process.process_interpreter import ProcessInterpreter
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.process_pool import ProcessPool
from tfs.runtime.process.spare_worker import SpareWorker
from tfs.runtime.process.zygote import Zygote
from tfs.runtime.process.zygote_process import ZygoteProcess


class ProcessBackend:
    """Makes pools of process interpreters. Thread-safe.

    Args:
        loop: Drives all conversations with workers.
        options: Options of every interpreter.
        started: A zygote that runs already; it ends with this, or when it is idle.

    """

    def __init__(
        self,
        loop: ServingLoop,
        options: ProcessOptions | None = None,
        started: ZygoteProcess | None = None,
    ) -> None:
        self._loop = loop
        self._options = options or ProcessOptions()
        self._zygote = Zygote(loop, started=started)
        self._spare: SpareWorker | None = None
        if self._options.keeps_spare:
            self._spare = SpareWorker(loop, self._zygote, self._options.worker)
        if started is not None:
            loop.post(self._zygote.adopt)
        # Guards the list; leaf lock.
        self._lock = threading.Lock()
        self._pools: list[ProcessPool] = []
        self._num_made = 0

    @staticmethod
    def is_available() -> bool:
        """Whether this host can run it: Linux with memfd, pidfd and eventfd."""
        return ZygoteProcess.is_available()

    def pool(
        self, num_interpreters: int = 1, may_grow: Callable[[], bool] | None = None
    ) -> ProcessPool:
        """Returns a new pool; it takes memory only when something is loaded on it.

        With ``may_grow``, that is on one interpreter at first; see
        :class:`ProcessPool`.
        """
        with self._lock:
            self._num_made += 1
            name = f"pool-{self._num_made}"
            pool = ProcessPool(
                name,
                [
                    ProcessInterpreter(
                        f"{name}.{index}",
                        self._loop,
                        self._zygote,
                        self._options,
                        self._spare,
                    )
                    for index in range(num_interpreters)
                ],
                self._options,
                may_grow,
            )
            # Pools of versions that were unloaded hold nothing any more.
            self._pools = [each for each in self._pools if not each.is_spent]
            self._pools.append(pool)
        return pool

    def pools(self) -> list[ProcessPool]:
        """Returns the pools in use, for status and counters."""
        with self._lock:
            return [each for each in self._pools if not each.is_spent]

    @property
    def spare_pid(self) -> int | None:
        """The process id of the spare, once it is ready."""
        return self._spare.pid if self._spare is not None else None

    def close(self, deadline_s: float | None = None) -> None:
        """Ends every pool and the zygote. Blocks; the loop must run."""
        with self._lock:
            pools, self._pools = self._pools, []
        for pool in pools:
            pool.close(deadline_s)
        done = threading.Event()

        def end() -> None:
            if self._spare is not None:
                self._spare.close()
            self._zygote.close()
            done.set()

        if self._loop.is_loop_thread:
            end()
        else:
            self._loop.post(end)
            done.wait(5.0)
