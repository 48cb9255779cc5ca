"""Moves the loop to the core of a worker that has finished, if all cores are busy."""

from __future__ import annotations

import contextlib
import os
from typing import Final

from tfs.core.serving_loop import ServingLoop

_LONG_S: Final = 150e-6
"""Moving the loop pays for calls that take at least this long, in seconds per core: the
loop then needs a third of a core or less."""


class BusyCores:
    """Counts the calls that run in processes of one server. Loop-confined.

    When every core has a call, the loop has to run on the core of some worker. The best
    one is that of the worker that wakes it, which has nothing to do until it is
    answered. But the kernel often leaves the loop on its old core. There it interrupts
    a call, while the core of the worker that has finished is idle. So a worker that has
    finished sets the affinity of the loop's thread to its own core before it rings, and
    the next one does the same. The loop takes its affinity back when a core is free. A
    thread that it starts before that begins with ``run_anywhere``.

    This is not done for short calls. There are so many of them that the loop rarely
    sleeps, and moving it while it runs costs it some microseconds.

    Args:
        loop: The loop whose thread is moved.

    Attributes:
        num_running: Calls that workers have now.
        long_s: A worker brings the loop if its call takes at least so many seconds.

    """

    def __init__(self, loop: ServingLoop) -> None:
        self._loop = loop
        # The main thread's cores; a worker may have narrowed the loop's just now.
        self._cores = (
            os.sched_getaffinity(os.getpid())
            if hasattr(os, "sched_getaffinity")
            else set[int]()
        )
        self._may_be_moved = False
        self.num_running = 0
        self.long_s = len(self._cores) * _LONG_S

    def follower(self) -> int:
        """Returns the thread that the worker of a long call should move; 0 for none."""
        if not self._cores or self.num_running < len(self._cores):
            return 0
        self._may_be_moved = True
        return self._loop.native_ident

    def settle(self) -> None:
        """Restores the loop's affinity if a core is free. Runs on the loop's thread."""
        if self._may_be_moved and self.num_running < len(self._cores):
            with contextlib.suppress(OSError):  # the cores that it may use have changed
                os.sched_setaffinity(0, self._cores)
            self._may_be_moved = self.num_running > 0  # running calls may still move it
