"""Processes for versions, from one zygote: the paper's one interpreter per core."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tfs.core.errors import FailedPrecondition
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.system.thread_priority import give_way
from tfs.runtime.guest.memory_files import VersionFiles, payload_paths
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.interpreter import closed
from tfs.runtime.process.process_model import ProcessModel
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.worker import Worker
from tfs.runtime.process.zygote import Zygote
from tfs.runtime.process.zygote_process import ZygoteProcess

_SMALL_BYTES: Final = 1 << 20  # copied before a thread has started


class ProcessPool:
    """Loads each version into processes of its own, from one copy of its bytes.

    Thread-safe. Implements :class:`~tfs.runtime.interpreter.Interpreter`: loading a
    version disturbs no other, unloading ends its processes, and a crash harms no other.

    Args:
        name: The pool's name in logs.
        loop: Drives the conversations with workers.
        zygote: Forks them.
        options: How they run.
        num_processes: For each version. One that takes several requests at once gets
            one, because these must be together.
        may_grow: See :class:`ProcessModel`.

    """

    def __init__(
        self,
        name: str,
        loop: ServingLoop,
        zygote: Zygote,
        options: ProcessOptions,
        num_processes: int = 1,
        may_grow: Callable[[], bool] | None = None,
    ) -> None:
        if num_processes < 1:
            raise ValueError("a pool needs a process")
        self._name = name
        self._loop = loop
        self._zygote = zygote
        self._options = options
        self._num_processes = num_processes
        self._may_grow = may_grow
        # Guards the fields below; leaf.
        self._lock = threading.Lock()
        self._models: list[ProcessModel] = []
        self._num_loads = 0
        self._is_closed = False

    @property
    def is_spent(self) -> bool:
        """Whether it was used and holds nothing any more."""
        return self._num_loads > 0 and not self.num_models

    def load(self, source: ModelSource) -> ProcessModel:
        """Loads a version; see :meth:`ProcessModel.start`. Blocks."""
        if self._loop.is_loop_thread:
            raise FailedPrecondition(f"{source.id.slashed}: load blocks the loop")
        files = self._stage(source)
        with self._lock:
            if self._is_closed:
                files.close()
                raise closed(self._name)
            self._models = [each for each in self._models if not each.is_closed]
            model = ProcessModel(
                f"{self._name}.{self._num_loads}",
                self._loop,
                self._zygote,
                self._options,
                source,
                files,
                1 if source.concurrency > 1 else self._num_processes,
                self._may_grow,
            )
            self._models.append(model)
            self._num_loads += 1
        try:
            model.start()
        except BaseException:
            model.unload()
            raise
        return model

    def _stage(self, source: ModelSource) -> VersionFiles:
        """Copies the payload into memory; a large one at the lowest priority."""
        paths = [*filter(os.path.exists, payload_paths(source).values())]
        is_small = sum(map(os.path.getsize, paths)) <= _SMALL_BYTES
        if is_small or self._options.is_urgent():
            return VersionFiles.stage(source)
        # A thread of its own, because none without privileges gets its priority back.
        with ThreadPoolExecutor(1, f"load-{self._name}", give_way) as thread:
            return thread.submit(VersionFiles.stage, source).result()

    @property
    def num_models(self) -> int:
        return sum(not each.is_closed for each in [*self._models])

    def close(self, deadline_s: float | None = None) -> None:
        with self._lock:
            self._is_closed = True
            models = [*self._models]
        for model in models:
            model.close(deadline_s)


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
            self.prepare()
        # Guards the list; leaf lock.
        self._lock = threading.Lock()
        self._pools: list[ProcessPool] = []
        self._num_made = 0

    def prepare(self) -> None:
        """Has a zygote start for the first process; returns at once."""
        self._loop.post(self._zygote.prepare)

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

    def worker(self, name: str) -> Worker:
        """Returns a worker for sessions of the library, which the caller closes."""
        return Worker(name, self._loop, self._zygote, self._options, None)

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
