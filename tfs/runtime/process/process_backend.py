"""The process backend of a server: one zygote, and the pools made from it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tfs.core.loop.serving_loop import ServingLoop
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.process_pool import ProcessPool
from tfs.runtime.process.zygote import Zygote
from tfs.runtime.process.zygote_process import ZygoteProcess


class ProcessBackend:
    """Makes pools of processes. Thread-safe.

    Args:
        loop: Drives all conversations with workers.
        options: Options of every process.
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
        self, num_processes: int = 1, may_grow: Callable[[], bool] | None = None
    ) -> ProcessPool:
        """Returns a new pool; it takes memory only when something is loaded.

        With ``may_grow``, a version gets one process at first; see
        :class:`ProcessPool`.
        """
        with self._lock:
            self._num_made += 1
            pool = ProcessPool(
                f"pool-{self._num_made}",
                self._loop,
                self._zygote,
                self._options,
                num_processes,
                may_grow,
            )
            # Pools of versions that were unloaded hold nothing any more.
            self._pools = [each for each in self._pools if not each.is_spent]
            self._pools.append(pool)
        return pool

    def close(self, deadline_s: float | None = None) -> None:
        """Ends every pool and the zygote. Blocks; the loop must run."""
        with self._lock:
            pools, self._pools = self._pools, []
        for pool in pools:
            pool.close(deadline_s)
        done = threading.Event()

        def end() -> None:
            self._zygote.close()
            done.set()

        if self._loop.is_loop_thread:
            end()
        else:
            self._loop.post(end)
            done.wait(5.0)
