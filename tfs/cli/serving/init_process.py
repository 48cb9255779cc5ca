"""What ``tfs serve`` does as process 1 of a container: it waits for orphans.

Whatever a model starts and leaves behind becomes a child of process 1, and stays a zombie
until that waits for it. Enough of them, and no process can be started any more. So
process 1 runs the server as its child, passes signals on to it, waits for everything,
and ends as the server ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Final

_KEPT: Final = frozenset(
    {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGTTIN, signal.SIGTTOU}
)


def run_below_init() -> int | None:
    """Forks if this is process 1, and waits in it for all processes, until the server ends.

    To be called while there is one thread.

    Returns:
        None in the process that is to become the server; in process 1, the status with
        which to exit.

    """
    return wait_for_child() if os.getpid() == 1 else None


def wait_for_child() -> int | None:
    """Forks, and reaps whatever becomes a child of this process; see ``run_below_init``."""
    passed_on = signal.valid_signals() - _KEPT
    # A signal that comes meanwhile waits until there is somebody to pass it on to.
    signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
    server = os.fork()
    if server == 0:
        # Out of the terminal's group: else Ctrl-C would reach it twice.
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)
        return None
    for number in passed_on:
        # The C library keeps some real-time signals to itself.
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, lambda number, _: os.kill(server, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)
    while True:
        pid, status = os.wait()
        if pid == server:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
