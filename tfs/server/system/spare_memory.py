"""Gives back the memory of large messages: what they leave unused, and all after them.

glibc is told to keep such memory (:mod:`tfs.server.system.malloc`), because the next
large message uses it again. After the last large message it would be kept for good: a
burst of compressed images, or a hostile client, would leave the server as large as its
peak.

Not all of it is used again. torch asks for aligned memory, and glibc (before 2.38) looks
for a hole that is larger than the one that such a block left. So the heap grows by a block
with each answer, until up to eight or ten are free: one client that called with 10 MB
twice a second had a server of 277 MB grow to 361. That is returned while messages come,
but rarely if there is much of it, because busy clients use most of it again.

While requests wait for memory, a heap that grew is trimmed each second, because large
blocks of many sizes leave holes into which none of them fits again. And large blocks do
not come from the heap during that time, so that freed memory goes back to the system.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from math import inf
from typing import Final

from tfs.core.executor import Executor
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.process_memory import resident_bytes, trim_heap
from tfs.server.system.malloc import set_scarce

MUCH_BYTES: Final = 16 << 20
"""Least memory to give back, because that takes milliseconds in which nobody can allocate.
"""

QUIET_S: Final = 5.0
"""Seconds after the last large message before its memory is given back."""

LOOK_S: Final = 1.0
"""Seconds between two looks at the heap while large messages come."""

RETURNED_BYTES_PER_S: Final = 10 << 20
"""How much is returned while large messages come, on average. It may be needed again at
once, and a megabyte takes the system 0.4 ms then: less than a hundredth of the time."""


def _own_bytes() -> int:
    return resident_bytes(os.getpid()) or 0


class SpareMemory:
    """Trims the heap after large messages, and while they come. Loop-confined.

    Args:
        loop: The loop whose clock and timers are used.
        executor: Trims the heap, which takes tens of milliseconds for a gigabyte.
        trim: Returns free memory to the system.
        resident_bytes: Returns the resident memory of the process.
        set_scarce: Makes large blocks come from outside the heap, or from it again.

    """

    def __init__(
        self,
        loop: ServingLoop,
        executor: Executor,
        trim: Callable[[], None] = trim_heap,
        resident_bytes: Callable[[], int] = _own_bytes,
        set_scarce: Callable[[bool], None] = set_scarce,
    ) -> None:
        self._loop = loop
        self._executor = executor
        self._trim = trim
        self._resident_bytes = resident_bytes
        self._least_bytes = resident_bytes()  # the lowest since the last trim
        self._used_at_s = 0.0
        self._next_look_s = -inf
        self._is_armed = False
        self._set_scarce = set_scarce
        self._scarce_at_s = 0.0
        self._is_scarce = False

    def note_large_message(self) -> None:
        """Postpones the next trim; cheap enough to be called for every large message."""
        self._used_at_s = now_s = self._loop.clock.now()
        if not self._is_armed:
            self._arm()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + LOOK_S
            self._submit(self._trim_while_used)

    def note_scarcity(self) -> None:
        """Has large blocks come from elsewhere for some seconds; cheap, as for messages."""
        self._scarce_at_s = self._loop.clock.now()
        if not self._is_scarce:
            self._is_scarce = True
            self._set_scarce(True)
            self._go_on_scarce()

    def _go_on_scarce(self) -> None:
        now_s = self._loop.clock.now()
        if now_s >= self._scarce_at_s + QUIET_S:
            self._is_scarce = False
            self._set_scarce(False)
            return
        self._submit(self._trim_growth)
        self._loop.call_at(now_s + LOOK_S, self._go_on_scarce)

    def _trim_while_used(self) -> None:
        # Runs on the executor. If a look comes meanwhile, it is one too many.
        returned_bytes = self._trim_growth()
        wait_s = returned_bytes / RETURNED_BYTES_PER_S
        if wait_s > LOOK_S:
            self._next_look_s = self._loop.clock.now() + wait_s

    def _trim_growth(self) -> int:
        # Runs on the executor. The size after a trim is the new base, so that memory
        # that cannot be returned does not cause further trims.
        resident_bytes = self._resident_bytes()
        if resident_bytes >= self._least_bytes + MUCH_BYTES:
            self._trim()
            self._least_bytes = self._resident_bytes()
            return resident_bytes - self._least_bytes
        self._least_bytes = min(self._least_bytes, resident_bytes)
        return 0

    def _arm(self) -> None:
        self._is_armed = True
        self._loop.call_at(self._used_at_s + QUIET_S, self._look)

    def _look(self) -> None:
        if self._loop.clock.now() < self._used_at_s + QUIET_S:
            self._arm()
            return
        self._is_armed = False
        self._submit(self._trim)

    def _submit(self, function: Callable[[], object]) -> None:
        try:
            self._executor.submit(function)
        except RuntimeError:
            return  # the server is shutting down
