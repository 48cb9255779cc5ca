"""One worker process as its host holds it: memory, doorbells, channels, pidfd."""

from __future__ import annotations

import contextlib
import os
import signal
import socket

from tfs.runtime.guest import control_channel
from tfs.runtime.guest.slab import STARTED, Slab


class WorkerLink:
    """Descriptors and memory shared with one worker. Loop-confined.

    A link is made before its process, with the worker's ends in ``remote_fds``, and
    outlives it by as much as it takes to read what it had finished.
    """

    def __init__(self, slab_bytes: int) -> None:
        with contextlib.ExitStack() as undo:
            self.slab = Slab.create(slab_bytes)
            undo.callback(self.slab.close)
            self.request_fd = os.eventfd(0, os.EFD_CLOEXEC)
            undo.callback(os.close, self.request_fd)
            self.reply_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            undo.callback(os.close, self.reply_fd)
            self.control, self._their_control = control_channel.pair()
            undo.callback(self.control.close)
            undo.callback(self._their_control.close)
            self.tensors, self._their_tensors = control_channel.pair()
            undo.pop_all()
        self.control.setblocking(False)
        self.tensors.setblocking(False)
        self.pid = -1
        self.pidfd = -1
        self.zygote_pid = -1
        self._closed = False

    @property
    def remote_fds(self) -> tuple[int, ...]:
        """What the worker gets, in its order."""
        return (
            self.slab.fd,
            self.request_fd,
            self.reply_fd,
            self._their_control.fileno(),
            self._their_tensors.fileno(),
        )

    def attach(self, pid: int, pidfd: int, zygote_pid: int) -> None:
        """Takes the forked process over."""
        self.pid = pid
        self.pidfd = pidfd
        self.zygote_pid = zygote_pid
        self._their_control.close()
        self._their_tensors.close()

    def ring(self) -> None:
        """Tells the worker that one more request lies in the slab."""
        os.eventfd_write(self.request_fd, 1)

    def num_replies(self) -> int:
        """Returns how many replies came since the last time asked."""
        try:
            return os.eventfd_read(self.reply_fd)
        except BlockingIOError:
            return 0

    def num_started(self) -> int:
        """Returns how many requests the worker says it began."""
        started: int = self.slab.words[STARTED]
        return started

    def send_tensors(self, fd: int) -> None:
        """Hands over the memfd of the request written last.

        Raises:
            OSError: The worker is gone, or does not keep up.

        """
        socket.send_fds(self.tensors, [b"i"], [fd])

    def receive_tensors(self) -> int | None:
        """Returns the memfd of the reply read next; the caller closes it."""
        try:
            _, fds, _, _ = socket.recv_fds(self.tensors, 1, 1)
        except OSError:
            return None
        return fds[0] if fds else None

    def kill(self) -> None:
        """Ends the process at once; idempotent."""
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def kill_group(self) -> None:
        """Ends what the model started beside it, where the zygote no longer can.

        For a worker that ended with its zygote: others are seen to by the zygote, while
        their number cannot be anybody else's yet.
        """
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kills the process and frees everything; idempotent."""
        if self._closed:
            return
        self._closed = True
        self.kill()
        for channel in (
            self.control,
            self._their_control,
            self.tensors,
            self._their_tensors,
        ):
            channel.close()
        for fd in (self.request_fd, self.reply_fd, self.pidfd):
            if fd >= 0:
                os.close(fd)
        self.slab.close()
