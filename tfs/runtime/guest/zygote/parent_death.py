"""Ends a process together with the server. Imports nothing that takes time.

The kernel does all of it. It needs neither Python's lock nor a thread's help, both of
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
    """Has the kernel kill this process when its parent ends; exits if that has happened.

    More exactly, when the thread of the parent ends that started this process, or that
    started the process which forked it. Call this after changing users, because that
    would cancel the request.
    """
    _tell_at_parents_death(parent_pid, signal.SIGKILL)


def die_after_parent(parent_pid: int) -> None:
    """Like :func:`die_with_parent`, but 16 seconds later: for the leader of a group.

    Normally ``end_group_with_pipe`` ends it first, together with what a model started.
    But the kernel signals the death of a thread before the process's last thread has
    given its memory back and closed its descriptors, which takes seconds where
    processors are short. Once the leader of the group is gone, nobody is left who knows
    the group. So this is only for a leader that has closed its end of the pipe.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    # The handler is C's ``alarm``: called with the signal's number, 16, it sets an alarm
    # that goes off after 16 seconds. Nobody else uses this signal.
    libc.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    libc.signal(signal.SIGSTKFLT, ctypes.cast(libc.alarm, ctypes.c_void_p))
    _tell_at_parents_death(parent_pid, signal.SIGSTKFLT)


def end_group_with_pipe(pipe_fd: int) -> None:
    """Has the kernel kill this process's group when a pipe's other end closes.

    Exits if it has closed already. The calling process leads the group. The function
    takes over ``pipe_fd`` and leaves another descriptor of the pipe open. If the system
    cannot do this, programs that a model started outlive a server that is killed; the
    process itself does not.
    """
    with contextlib.suppress(OSError):
        # The pipe is opened again, because the receiver of the signal is a property of
        # the open file, which other processes share.
        own_fd = os.open(f"/proc/self/fd/{pipe_fd}", os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(own_fd, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(own_fd, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(own_fd, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    poll = select.poll()
    poll.register(pipe_fd, 0)
    if poll.poll(0):
        os._exit(0)  # it had closed before the kernel was asked to watch it
    os.close(pipe_fd)


def _tell_at_parents_death(parent_pid: int, number: signal.Signals) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(0)
