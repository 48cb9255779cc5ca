"""The limit on how much a worker's models may add to its private memory."""

from __future__ import annotations

import os
import resource

from tfs.core.system.process_memory import anonymous_bytes, data_bytes
from tfs.runtime.guest.guest_model import give_memory_back
from tfs.runtime.guest.worker_options import OUT_OF_MEMORY


class MemoryLimit:
    """Limits the private memory of this process. Only one thread may change it.

    RLIMIT_DATA counts private writable memory. That includes mapped weights, so the
    limit moves with the weights. It is soft: it contains a leak, not an attacker.

    RLIMIT_DATA counts addresses, also those that threads reserve and never touch. So
    what the process has is counted when all its threads have begun. And whether a model
    keeps memory is decided by what is resident, because a hole in the heap also counts
    as addresses, although the next call can use it.

    Args:
        limit_bytes: How much may be added to what the process has now; 0 for no limit.

    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._allowed_bytes = 0
        self._resident_bytes = 0

    def count_from_here(self) -> None:
        """Takes what the process has now as what it needs without a model."""
        if self._limit_bytes:
            self._allowed_bytes = (data_bytes(os.getpid()) or 0) + self._limit_bytes
            self._resident_bytes = anonymous_bytes(os.getpid()) or 0
            self._apply()

    def allow(self, size_bytes: int) -> None:
        """Moves the limit by the size of weights that are mapped, or unmapped if negative."""
        if self._limit_bytes:
            self._allowed_bytes += size_bytes
            self._apply()

    def leave_if_leaking(self) -> None:
        """Ends the process after a call ran out of memory, if the model keeps memory.

        That is so if it keeps more than half of the limit, or if hardly anything is
        left. A call that only asked for too much is answered: the next one may be
        smaller. May be called from any thread.
        """
        give_memory_back()
        if not self._limit_bytes:
            return
        kept_bytes = (anonymous_bytes(os.getpid()) or 0) - self._resident_bytes
        left_bytes = self._allowed_bytes - (data_bytes(os.getpid()) or 0)
        if kept_bytes > self._limit_bytes // 2 or left_bytes < self._limit_bytes // 8:
            os._exit(OUT_OF_MEMORY)

    def _apply(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (self._allowed_bytes, hard))
