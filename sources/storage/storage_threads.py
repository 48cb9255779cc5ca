"""Threads for storage that may not answer: a store, a network mount.

A call to a dead mount cannot be interrupted, so it keeps its thread until the mount
comes back. What must not happen is that anybody else waits for it. So the calls of each
*place* (a store, a mount) have threads of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from tfs.core.clock import Clock, MonotonicClock
from tfs.core.executor import Call, ThreadExecutor

PATIENCE_S: Final = 2.0
"""How long a call may take before others stop waiting for it."""
_NUM_THREADS: Final = 4  # at the same time for one place, besides those of late calls


class StorageThreads:
    """Runs calls of different places beside each other. Thread-safe, never blocks.

    Whoever submits also calls ``relieve``, at the times that it returns.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        # Guards the fields below; leaf, but for those of the executors.
        self._lock = threading.Lock()
        self._executors: dict[str, ThreadExecutor] = {}
        self._is_closed = False

    def submit(
        self, place: str, fn: Callable[[], object], patience_s: float = PATIENCE_S
    ) -> Call:
        """Runs ``fn`` on a thread of ``place``; what it raises is logged.

        Raises:
            RuntimeError: They are closed; ``fn`` will not run.

        """
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the storage threads are closed")
            executor = self._executors.get(place)
            if executor is None:
                executor = ThreadExecutor(_NUM_THREADS, "storage", self._clock)
                self._executors[place] = executor
        return executor.submit(fn, patience_s)

    def relieve(self) -> float | None:
        """Notes which calls are late, and lets others run in their place.

        Returns:
            When, by the clock, another call may be late; None if none can be.

        """
        with self._lock:
            executors = list(self._executors.values())
        times_s = [each.relieve() for each in executors]
        return min((each for each in times_s if each is not None), default=None)

    def close(self) -> None:
        """Takes no more calls, and waits for none."""
        with self._lock:
            self._is_closed = True
            executors = list(self._executors.values())
        for each in executors:
            each.close(self._clock.now())
