"""Tells, at little cost, whether a process holds more memory than before."""

from __future__ import annotations

import os
import resource
from mmap import PAGESIZE

from tfs.core.process_memory import anonymous_bytes, private_bytes


class KeptMemory:
    """How much more memory is held now than when this was made. Confined to one thread.

    The kernel takes milliseconds to count the memory that a process shares with no
    other. That memory cannot have grown by more than what was allocated, and the pages
    that were touched, since it was last counted. So it is counted again only when that
    might be too much.

    Args:
        most_bytes: How much more may be held than now.

    Raises:
        OSError: The system does not say how much is held.

    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._first_bytes = self._last_bytes = _counted_bytes()
        self._faults, self._made_bytes = _num_faults(), _made_bytes()

    def excess_bytes(self) -> int:
        """Returns by how much it has grown, if that is too much; otherwise 0."""
        touched_bytes = (_num_faults() - self._faults) * PAGESIZE
        # A fault counts once, however large its page is.
        added_bytes = touched_bytes + max(0, _made_bytes() - self._made_bytes)
        if self._last_bytes + added_bytes - self._first_bytes <= self._most_bytes:
            return 0
        self._last_bytes = _counted_bytes()
        self._faults, self._made_bytes = _num_faults(), _made_bytes()
        grown_bytes = self._last_bytes - self._first_bytes
        return grown_bytes if grown_bytes > self._most_bytes else 0


def _counted_bytes() -> int:
    return _known(private_bytes(os.getpid()))


def _made_bytes() -> int:
    return _known(anonymous_bytes(os.getpid()))


def _known(size_bytes: int | None) -> int:
    if size_bytes is None:
        raise OSError("the system does not say what memory this process holds")
    return size_bytes


def _num_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
