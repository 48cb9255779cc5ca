"""One worker process as its host sees it: its calls, its control channel, its pidfd."""

from __future__ import annotations

import contextlib
import os
import signal

from tfs.core.thread_priority import LOWEST
from tfs.runtime.guest import control_channel
from tfs.runtime.guest.shown_stacks import SHOW_STACKS
from tfs.runtime.guest.worker_options import WorkerOptions
from tfs.runtime.process.call_channel import CallChannel
from tfs.runtime.process.zygote import Forked


class WorkerLink:
    """Descriptors and memory shared with one worker. Loop-confined.

    A link is made before its process, with the worker's ends in ``remote_fds``. It
    outlives the process by the time that it takes to read what that had finished.

    """

    def __init__(self, options: WorkerOptions) -> None:
        with contextlib.ExitStack() as undo:
            self.calls = CallChannel(options.slab_bytes, spins=bool(options.spin_us))
            undo.callback(self.calls.close)
            self.control, self._their_control = control_channel.pair()
            undo.pop_all()
        self.control.setblocking(False)
        self.pid = -1
        self.pidfd = -1
        self._forked: Forked | None = None
        self._closed = False

    @property
    def remote_fds(self) -> tuple[int, ...]:
        """The descriptors that the worker gets, in the order in which it takes them."""
        return (*self.calls.remote_fds, self._their_control.fileno())

    @property
    def imported(self) -> frozenset[str]:
        """The platforms whose slow imports the worker has done."""
        return self._forked.imported if self._forked is not None else frozenset()

    def attach(self, forked: Forked) -> None:
        """Takes over the forked process."""
        self._forked = forked
        self.pid = forked.pid
        self.pidfd = forked.pidfd
        self._their_control.close()
        self.calls.detach()

    def kill(self) -> None:
        """Ends the process at once; idempotent.

        It dies at the lowest priority, because the kernel needs 5 ms and more to free
        what it held.
        """
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, 0)  # its pid is not reused yet
                with contextlib.suppress(OSError):
                    # For all its threads, because the last to end frees the memory.
                    os.setpriority(os.PRIO_PGRP, self.pid, LOWEST)
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def show_stacks(self) -> None:
        """Has the process write to stderr what its threads are at."""
        if self.pidfd >= 0:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self.pidfd, SHOW_STACKS)

    def exit_status(self) -> int | None:
        """Returns its status of ``os.wait``, once the pidfd says that it has ended."""
        forked = self._forked
        return forked.exits.of(self.pid, self.pidfd) if forked is not None else None

    def close(self) -> None:
        """Kills the process and frees everything; idempotent."""
        if self._closed:
            return
        self._closed = True
        self.kill()
        self.control.close()
        self._their_control.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
        self.calls.close()
