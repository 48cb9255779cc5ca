"""Moves the loop to the core of a worker that finished, where all cores are busy."""

from __future__ import annotations

import contextlib
import os
from typing import Final

from tfs.core.serving_loop import ServingLoop

_LONG_S: Final = 150e-6
"""Least seconds of a call, per core, for moving the loop to pay: it takes a third of a
core or less then."""


class BusyCores:
    """Counts the calls that run in processes of one server. Loop-confined.

    Where each core has a call, the loop has to run on a worker's. Best on that of the
    worker it is woken by, which has nothing to do until it is answered. The kernel often
    leaves it on the core it had: there it interrupts a call, while the core of the one
    that has finished is idle. So that worker sets the affinity of the loop's thread to its
    own core before it rings, as the next one does. The loop takes it back when a core is
    free; a thread that it starts until then begins with ``run_anywhere``.

    Not for short calls, of which there are so many that the loop rarely sleeps: to move it
    while it runs costs it some microseconds.

    Args:
        loop: The loop whose thread is moved.

    Attributes:
        num_running: Calls that are with workers now.
        long_s: Least seconds of a call for its worker to bring the loop.

    """

    def __init__(self, loop: ServingLoop) -> None:
        self._loop = loop
        # Of the main thread: the loop's own may be narrowed just now.
        self._cores = (
            os.sched_getaffinity(os.getpid())
            if hasattr(os, "sched_getaffinity")
            else set[int]()
        )
        self._may_be_moved = False
        self.num_running = 0
        self.long_s = len(self._cores) * _LONG_S

    def follower(self) -> int:
        """Returns the thread that the worker of a long call is to bring; 0 for none."""
        if not self._cores or self.num_running < len(self._cores):
            return 0
        self._may_be_moved = True
        return self._loop.native_ident

    def settle(self) -> None:
        """Takes the loop's affinity back where a core is free. On the loop's thread."""
        if self._may_be_moved and self.num_running < len(self._cores):
            with contextlib.suppress(OSError):  # what it may run on has changed
                os.sched_setaffinity(0, self._cores)
            self._may_be_moved = self.num_running > 0  # they were told before
