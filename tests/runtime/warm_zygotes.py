"""Zygotes that start at once: forks of a program that has torch imported.

Importing torch is nearly all of what the start of a zygote takes, and tests start many.
The program itself, and how it ends, is for the tests of ``ZygoteProcess`` and for those
whose host is a program of its own.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import ClassVar, Final

from tfs.core.system import thread_priority
from tfs.runtime.guest import control_channel
from tfs.runtime.process import worker_process
from tfs.runtime.process.zygote import StartedZygote
from tfs.runtime.process.zygote_process import (
    ExitStatuses,
    ZygoteProcess,
    worker_environment,
)

# pytest says which test runs; torch's compiler where its caches are, and more.
_NOTED: Final = ("PYTEST_CURRENT_TEST", "TORCH", "_TORCH", "TRITON_")


class WarmZygotes:
    """Stands in for ``ZygoteProcess``: the program is started at most once. Thread-safe.

    What a test changed that a program would notice (the environment, the module path,
    the working directory, the Python) is for a fresh one to see.
    """

    def __init__(self) -> None:
        self._terms = _terms()
        # Guards the program; held while it is started and asked, neither of which blocks.
        self._lock = threading.Lock()
        self._nursery: ZygoteProcess | None = None

    def start(self) -> StartedZygote:
        """Returns a zygote that has nothing behind it but its imports."""
        if _terms() != self._terms:
            return ZygoteProcess()
        ours, theirs = control_channel.pair()
        ours.setblocking(False)
        with self._lock, theirs:
            nursery = self._nursery
            if nursery is None:
                nursery = self._nursery = _Nursery()
                atexit.register(nursery.close)
            try:
                message = str(thread_priority.LOWEST).encode()
                control_channel.send(nursery.channel, message, (theirs.fileno(),))
            except OSError:  # somebody killed it
                ours.close()
                self._nursery = None
                return ZygoteProcess()
        return _ForkedZygote(ours, nursery.exits)


class _ForkedZygote:
    """A zygote that only its channel leads to. Thread-safe."""

    def __init__(self, channel: socket.socket, exits: ExitStatuses) -> None:
        self.channel = channel
        self.exits = exits

    def on_end(self, fn: Callable[[str], None]) -> None:
        """Does nothing: the channel shows when it ends."""

    def close(self) -> None:
        """Ends it, soon; idempotent."""
        self.channel.close()


class _Nursery(ZygoteProcess):
    """A program like a zygote that forks zygotes."""

    program: ClassVar[str] = ZygoteProcess.program.replace(
        "from tfs.runtime.guest.zygote.zygote import main",
        "from tests.runtime.warm_zygotes import main",
    )


def main(host_pid: int, channel_fd: int, life_fd: int) -> None:
    """Runs the nursery on an inherited channel."""
    from tfs.runtime.guest.zygote import zygote
    from tfs.runtime.guest.zygote.process_tree import clone_parent, die_with_parent
    from tfs.runtime.guest.zygote.zygote import close_all_but

    known = zygote.prepare(channel_fd, life_fd)
    channel = socket.socket(fileno=channel_fd)
    while (message := control_channel.receive(channel)) is not None:
        lowest, (fd,) = message
        pid, pidfd = clone_parent()
        if pid == 0:
            vars(thread_priority)["LOWEST"] = int(lowest)
            close_all_but({0, 1, 2, life_fd, fd})
            die_with_parent(host_pid)
            there = socket.socket(fileno=fd)
            zygote.Zygote(host_pid, life_fd, there, known).run()
            os._exit(0)
        os.close(pidfd)
        os.close(fd)


def keep_priority() -> None:
    """Has what makes way, in this process and its zygotes, keep the priority it has.

    A test of priorities sets ``thread_priority.LOWEST`` and starts a zygote.
    """
    own = os.getpriority(os.PRIO_PROCESS, 0)
    for module in (thread_priority, worker_process):
        vars(module)["LOWEST"] = own


def _terms() -> tuple[str, str, dict[str, str]]:
    inherited = {
        name: value
        for name, value in worker_environment().items()
        if not name.startswith(_NOTED)
    }
    return sys.executable, os.getcwd(), inherited
