"""Whether the system has another inotify watch to give.

All programs of a user share a number of watches. A program that runs out of them while
it watches a tree hears of changes in some directories and not in others, and is not
told so: watchdog sets a watch for each directory that appears, and goes on if it gets
none. So this tries whether there is one.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from typing import Final

_IN_DELETE_SELF: Final = 0x400  # the rarest event, because nobody should be notified


class WatchLimit:
    """Asks for a watch and gives it back. Confined to one caller at a time.

    If there is no inotify, or no instance of it left, nothing is known, and the limit
    counts as not reached.
    """

    def __init__(self) -> None:
        self._libc = _find_libc()
        self._fd = -1

    def is_reached(self, path: str) -> bool:
        """Whether there is no watch left for the directory ``path``."""
        if self._libc is None:
            return False
        if self._fd < 0:
            self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if self._fd < 0:
                return False
        watch = self._libc.inotify_add_watch(
            self._fd, os.fsencode(path), _IN_DELETE_SELF
        )
        if watch < 0:
            return ctypes.get_errno() == errno.ENOSPC
        self._libc.inotify_rm_watch(self._fd, watch)
        _drain(self._fd)  # removing a watch causes an event, too
        return False

    def close(self) -> None:
        """Frees its inotify instance; idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except OSError:  # nothing more to read
        pass


class _Libc:
    """The three functions, with their types."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.inotify_init1: Callable[[int], int] = library.inotify_init1
        self.inotify_add_watch: Callable[[int, bytes, int], int] = (
            library.inotify_add_watch
        )
        self.inotify_rm_watch: Callable[[int, int], int] = library.inotify_rm_watch


def _find_libc() -> _Libc | None:
    try:
        library = ctypes.CDLL(None, use_errno=True)
        library.inotify_init1.argtypes = [ctypes.c_int]
        library.inotify_add_watch.argtypes = [
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_uint32,
        ]
        library.inotify_rm_watch.argtypes = [ctypes.c_int, ctypes.c_int]
        return _Libc(library)
    except (OSError, AttributeError):
        return None
