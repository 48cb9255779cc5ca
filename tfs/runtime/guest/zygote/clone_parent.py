"""Forks processes that become siblings of the forking process, not its children.

A process that a zygote forks in this way is a child of the server. It does not end with
the zygote, the server learns how it ended whatever happened to the zygote, and its
parent-death signal is sent when the server dies. The C library's ``fork`` cannot ask
for that (``CLONE_PARENT``), so this makes the system call, and around it does what
Python documents for "any similar function that clones the current process".

Nearly all that the C library does beyond the call is for processes of several threads:
locks of the allocator and of files, and handlers of ``pthread_atfork``. So the caller
must have one thread. The exception is the number by which its main thread knows itself,
which the kernel is told to write.

Rejected: a second fork whose parent ends at once, so that the kernel gives the orphan
to the nearest subreaper. That copies one page table more per worker, and a server that
is a subreaper inherits, and has to reap, everything else that models leave behind.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
import threading
from typing import Final

_CLONE: Final = {"x86_64": 56, "aarch64": 220, "riscv64": 220}
"""The number of the system call, by machine."""

_CLONE_PIDFD: Final = 0x00001000
_CLONE_PARENT: Final = 0x00008000
_CLONE_CHILD_CLEARTID: Final = 0x00200000
_CLONE_CHILD_SETTID: Final = 0x01000000
_PR_GET_TID_ADDRESS: Final = 40


def is_possible() -> bool:
    """Whether this machine's number of the system call is known."""
    return sys.platform == "linux" and platform.machine() in _CLONE


def clone_parent() -> tuple[int, int]:
    """Forks a child of this process's parent. The caller must have a single thread.

    Returns:
        The child's process id and its pidfd, which the caller closes; ``(0, -1)`` in
        the child. The process id is not reused before the parent has reaped the child.

    Raises:
        OSError: The system does not fork; nothing happened.

    """
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
