"""The end of a process together with the server. Imports nothing that takes time.

All of it is the kernel's doing: it needs neither Python's lock nor the help of a thread,
which a model may keep for ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def die_with_parent(parent_pid: int) -> None:
    """Has the kernel kill this process when its parent ends; exits if it has.

    More exactly, when the parent's thread does that started it, or what forked it off.
    After changing users: that would take the request back.
    """
    _tell_at_parents_death(parent_pid, signal.SIGKILL)


def die_after_parent(parent_pid: int) -> None:
    """As :func:`die_with_parent`, 16 seconds later: for who leads a group.

    ``end_group_with_pipe`` comes first, with what a model started. The kernel tells of a
    thread's death before that process' last thread has given its memory back and then
    closed its descriptors, which takes seconds where processors are short; and once the
    leader is gone there is nobody left to know the group. So this is for a leader that
    has closed its own.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    # A handler that is no Python: it is called with the signal's number, 16, and the alarm
    # goes off after so many seconds. Nobody else has a use for this signal.
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    libc.signal(signal.SIGSTKFLT, ctypes.cast(libc.alarm, ctypes.c_void_p))
    _tell_at_parents_death(parent_pid, signal.SIGSTKFLT)


def end_group_with_pipe(pipe_fd: int) -> None:
    """Has the kernel kill this process' group when a pipe's other end closes.

    Exits if it has. The calling process leads the group; ``pipe_fd`` becomes this
    function's, and is left open as another one. Where the system cannot do it, a model's
    programs outlive a server that is killed; the process itself does not.
    """
    with contextlib.suppress(OSError):
        # Opened anew: whom to signal is the open file's to know, which others have too.
        own_fd = os.open(f"/proc/self/fd/{pipe_fd}", os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(own_fd, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(own_fd, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(own_fd, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    poll = select.poll()
    poll.register(pipe_fd, 0)
    if poll.poll(0):
        os._exit(0)  # it closed before anybody could tell
    os.close(pipe_fd)


def _tell_at_parents_death(parent_pid: int, number: signal.Signals) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(0)
