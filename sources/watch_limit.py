"""Whether the system has another inotify watch to give.

A user may have so many, all programs together. Whoever watches a tree and runs out of them
on the way hears of some directories and not of others, and is not told: watchdog sets a
watch for each directory that appears, and goes on where it gets none. So it is tried out.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from typing import Final

_IN_DELETE_SELF: Final = 0x400  # as seldom as can be: nobody is to hear of it


class WatchLimit:
    """Asks for a watch and gives it back. Confined to one caller at a time.

    Where there is no inotify, or no instance of it left, nothing is known: then it is
    not reached.
    """

    def __init__(self) -> None:
        self._libc = _find_libc()
        self._fd = -1

    def is_reached(self, path: str) -> bool:
        """Whether a watch of the directory ``path`` would be one too many."""
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
        _drain(self._fd)  # that it was removed is an event, too
        return False

    def close(self) -> None:
        """Frees what it has; idempotent."""
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
