"""Tells whether another server keeps its state in the same directory.

Two servers that share one would replace each other's overrides: each knows only its
own, and a restart would bring in those of the other. The directory itself is locked, so
that no lock file is left in it. The kernel frees the lock when a server ends, however
it ends. If a file system has no such locks, no server is kept away.
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Final

from tfs.core.own_descriptors import OWN

_HELD: Final = frozenset({errno.EACCES, errno.EAGAIN})


class StateLock:
    """One server's claim to a state directory. Confined to one thread at a time.

    Args:
        state_dir: The directory; it exists when ``take`` is called.

    """

    def __init__(self, state_dir: str) -> None:
        self._state_dir = state_dir
        self._fd = -1

    @property
    def is_held(self) -> bool:
        """Whether this server has the lock."""
        return self._fd >= 0

    def take(self) -> bool:
        """Takes it; returns False if another server has it.

        Returns True if that cannot be told. Blocks only on the disk.
        """
        if self.is_held:
            return True
        try:
            fd = os.open(self._state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:  # writing there will report the error
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            return error.errno not in _HELD
        self._fd = fd
        OWN.add(fd)
        return True

    def close(self) -> None:
        """Gives it back; idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            OWN.remove(fd)
            os.close(fd)
