"""The bound on what a worker's models may add to its private memory."""

from __future__ import annotations

import os
import resource
from typing import Final

from tfs.core.process_memory import anonymous_bytes, data_bytes
from tfs.runtime.guest.freed_memory import give_back
from tfs.runtime.guest.worker_ends import OUT_OF_MEMORY

_THREAD_BYTES: Final = 24 << 20
"""What a thread reserves before it does anything: its stack, and the start of a heap."""


class MemoryLimit:
    """Bounds the private memory of this process. Changed by one thread alone.

    RLIMIT_DATA counts private writable memory, mapped weights among it, so that the
    limit moves with the weights. It is soft: it contains a leak, not an attacker.

    It counts addresses. What threads reserve and never touch is therefore added to the
    limit; and whether a model keeps memory is told by what is resident, because a hole
    in the heap counts as well, which the next call may have.

    Args:
        limit_bytes: What may be added to what the process has now; 0 for anything.

    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._allowed_bytes = 0
        self._resident_bytes = 0
        self.count_from_here()

    def count_from_here(self) -> None:
        """Takes what the process has now for what it needs without a model."""
        if self._limit_bytes:
            self._allowed_bytes = (data_bytes(os.getpid()) or 0) + self._limit_bytes
            self._resident_bytes = anonymous_bytes(os.getpid()) or 0
            self._apply()

    def allow(self, size_bytes: int) -> None:
        """Moves the limit by the weights that are mapped, or no longer are."""
        if self._limit_bytes:
            self._allowed_bytes += size_bytes
            self._apply()

    def allow_threads(self, num_threads: int) -> None:
        """Moves the limit by what so many threads more reserve; fewer, if negative."""
        self.allow(num_threads * _THREAD_BYTES)

    def leave_if_leaking(self) -> None:
        """Ends the process over a call that found no memory, if the model keeps it.

        That is so if it keeps over half of the limit, or hardly anything is left. A call
        that only asked for too much is answered, and the next may be smaller. From any
        thread.
        """
        give_back()
        if not self._limit_bytes:
            return
        kept_bytes = (anonymous_bytes(os.getpid()) or 0) - self._resident_bytes
        left_bytes = self._allowed_bytes - (data_bytes(os.getpid()) or 0)
        if kept_bytes > self._limit_bytes // 2 or left_bytes < self._limit_bytes // 8:
            os._exit(OUT_OF_MEMORY)

    def _apply(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (self._allowed_bytes, hard))
