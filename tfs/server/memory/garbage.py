"""Keeps the collector of cycles away from objects that live as long as the process.

A full collection visits every object and holds the GIL. With torch imported, these are
190,000 objects and some 90 ms in which no request is answered. It happens at each
unload (objects that a version held in cycles must go with it) and now and then in
between. Objects that exist before anything is served stay until the end, so they are
frozen, and a collection visits only later ones. torch is imported when the ports are
open already, and is frozen before anything is loaded beside it
(:meth:`tfs.server.interpreters.Interpreters.prepare`).

Thousands of models are a large heap, too: 60 objects each, apart from what a model
itself is. A collection that took long has shown that most of it stays, and freezes what
it left (:class:`Collector`).

Rejected: collecting less often, which keeps unloaded versions in memory; freezing again
after each load, which would keep their cycles for good.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Final

from managers.memory import trim_heap
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.right_of_way import make_way

LONG_S: Final = 0.05
"""After a collection that took longer, the objects that it left are frozen."""

_THAWED_SHARE: Final = 0.01


def freeze_imported() -> None:
    """Collects once, then exempts all existing objects from collections.

    To be called when everything is imported and nothing is loaded yet. Blocks for a
    full collection, which holds the GIL.
    """
    gc.collect()
    gc.freeze()


def _has_torch() -> bool:
    return "torch" in sys.modules


class Collector:
    """Sees to it that hardly any collection takes long. Thread-safe.

    From ``start`` to ``close``, every full collection that took over ``LONG_S`` is followed by
    a freeze, whoever collected. So a heap that grows is visited part by part.

    What was frozen and ends in a cycle is not freed. That matters for models that are
    Python objects of this process. If there may be any, everything is thawed and
    collected after unloads, but that takes a hundredth of the time at most.

    Args:
        clock: Decides when everything may be thawed again.
        has_models: Whether models may run in this process.
        cpu_s: Returns the processor time of the calling thread. What others take
            meanwhile says nothing about the heap.

    """

    def __init__(
        self,
        clock: Clock | None = None,
        has_models: Callable[[], bool] = _has_torch,
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._clock = clock or MonotonicClock()
        self._has_models = has_models
        self._cpu_s = cpu_s
        # Written by whoever collects, and there is never more than one.
        self._begun_s = 0.0
        self._has_frozen = False
        self._thaw_at_s = 0.0

    def start(self) -> None:
        """Begins to look at collections."""
        gc.callbacks.append(self._note)

    def close(self) -> None:
        """Stops that; what is frozen stays so. Idempotent."""
        if self._note in gc.callbacks:
            gc.callbacks.remove(self._note)

    def release(self) -> float | None:
        """Collects cycles, and returns free heap pages to the system. Blocks.

        For a manager, after it unloaded something.

        Returns:
            In how many seconds it wants to be called again; None if everything was
            looked at.

        """
        make_way()
        wait_s: float | None = None
        if self._has_frozen and self._has_models():
            wait_s = self._thaw_at_s - self._clock.now()
            if wait_s <= 0.0:
                wait_s = None
                self._has_frozen = False  # a long collection sets it again
                gc.unfreeze()
        begun_s = self._cpu_s()
        gc.collect()
        took_s = self._cpu_s() - begun_s
        if wait_s is None:
            self._thaw_at_s = self._clock.now() + took_s / _THAWED_SHARE
        make_way()
        trim_heap()
        return wait_s

    def _note(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] != 2:
            return
        if phase == "start":
            self._begun_s = self._cpu_s()
        elif self._cpu_s() - self._begun_s > LONG_S:
            gc.freeze()
            self._has_frozen = True
