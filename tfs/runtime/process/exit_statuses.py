"""Remembers how processes ended, for those who ask after others have reaped them."""

from __future__ import annotations

import os
import threading
from typing import Final

_KEPT: Final = 1000  # more than the processes whose ends are not noticed yet


class ExitStatuses:
    """The exit statuses of children of this process. Thread-safe."""

    def __init__(self) -> None:
        # Guards the table; leaf.
        self._lock = threading.Lock()
        self._by_pid: dict[int, int] = {}  # the oldest first

    def note(self, pid: int, status: int) -> None:
        """Remembers a status of ``os.wait``. Call it before the process is reaped."""
        with self._lock:
            self._by_pid.pop(pid, None)
            self._by_pid[pid] = status
            while len(self._by_pid) > _KEPT:
                del self._by_pid[next(iter(self._by_pid))]

    def of(self, pid: int, pidfd: int) -> int | None:
        """Returns how a process ended, once its pidfd says so; None if nobody knows.

        Nobody knows if children are not waited for (SIGCHLD is ignored), or if other
        code in this process waits for any child at all.
        """
        try:
            how = os.WEXITED | os.WNOHANG | os.WNOWAIT
            found = os.waitid(os.P_PIDFD, pidfd, how)
        except ChildProcessError:  # it was reaped, and its status noted, before
            with self._lock:
                return self._by_pid.get(pid)
        return status_of(found) if found is not None else None


def status_of(found: os.waitid_result) -> int:
    """Converts a result of ``os.waitid`` to the status that ``os.wait`` would return."""
    if found.si_code == os.CLD_EXITED:
        return found.si_status << 8
    return found.si_status | (0x80 if found.si_code == os.CLD_DUMPED else 0)
