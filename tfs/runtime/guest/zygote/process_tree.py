"""Forks that are children of the server, and processes that end together with it.

A process that a zygote forks by :func:`clone_parent` is a sibling of the zygote. It does
not end with the zygote, the server learns how it ended whatever happened to the zygote,
and its parent-death signal is sent when the server dies. The C library's ``fork`` cannot
ask for that (``CLONE_PARENT``), so this makes the system call, and around it does what
Python documents for "any similar function that clones the current process".

Nearly all that the C library does beyond the call is for processes of several threads:
locks of the allocator and of files, and handlers of ``pthread_atfork``. So the caller
must have one thread. The exception is the number by which its main thread knows itself,
which the kernel is told to write.

That processes end with the server is left to the kernel. It needs neither Python's lock
nor a thread's help, both of which a model may keep for ever.

Rejected: a second fork whose parent ends at once, so that the kernel gives the orphan
to the nearest subreaper. That copies one page table more per worker, and a server that
is a subreaper inherits, and has to reap, everything else that models leave behind.

This imports nothing that takes time.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import select
import signal
import threading
from typing import Final

_CLONE: Final = {"x86_64": 56, "aarch64": 220, "riscv64": 220}
"""The number of the system call, by machine."""

_CLONE_PIDFD: Final = 0x00001000
_CLONE_PARENT: Final = 0x00008000
_CLONE_CHILD_CLEARTID: Final = 0x00200000
_CLONE_CHILD_SETTID: Final = 0x01000000
_PR_GET_TID_ADDRESS: Final = 40


def clone_parent() -> tuple[int, int]:
    """Forks a child of this process's parent. The caller must have a single thread.

    Returns:
        The child's process id and its pidfd, which the caller closes; ``(0, -1)`` in
        the child. The process id is not reused before the parent has reaped the child.

    Raises:
        OSError: The system does not fork; nothing happened.

    """
    if platform.machine() not in _CLONE:
        raise OSError(errno.ENOSYS, f"nobody has tried it on {platform.machine()}")
    # Neither of them releases Python's lock, so the copy holds it as well.
    libc, python = ctypes.PyDLL(None, use_errno=True), ctypes.pythonapi
    ctypes.set_errno(0)
    number = ctypes.c_long(_CLONE[platform.machine()])
    pidfd = ctypes.c_int(-1)
    own_number = ctypes.c_void_p(_own_number_address(libc))
    flags = _CLONE_PIDFD | _CLONE_PARENT  # keeps the signal that the parent gets
    if own_number:
        flags |= _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID
    python.PyOS_BeforeFork()
    # The address is the fourth argument on some machines and the fifth on others; the
    # kernel ignores the other one.
    pid: int = libc.syscall(
        number,
        ctypes.c_ulong(flags),
        ctypes.c_void_p(None),
        ctypes.byref(pidfd),
        own_number,
        own_number,
    )
    if pid == 0:
        python.PyOS_AfterFork_Child()
        return 0, -1
    error = ctypes.get_errno()
    python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(error or errno.EAGAIN, os.strerror(error or errno.EAGAIN))
    return pid, pidfd.value


def _own_number_address(libc: ctypes.PyDLL) -> int | None:
    """Returns where the C library keeps this thread's number; None if unknown."""
    address = ctypes.c_void_p()
    if libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0) != 0:
        return None  # the kernel was built without support for checkpoints
    if not address.value:
        return None
    is_it = ctypes.c_int.from_address(address.value).value == threading.get_native_id()
    return address.value if is_it else None


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
