"""The host's ends of a slab: its doorbells, and the socket for what does not fit."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from typing import Final

from tfs.runtime.guest import control_channel
from tfs.runtime.guest.slab import STARTED, WORD_BYTES, Slab
from tfs.runtime.guest.worker_options import WorkerOptions

_MOST_REPLIES: Final = 1024  # further replies are read the next time


class CallChannel:
    """Memory and descriptors for calls, shared with one worker. Loop-confined.

    A worker that looks for the next request before it sleeps rings by an eventfd. The
    kernel assumes that a writer to a pipe is about to sleep, and wakes the loop on its
    core; see the guest's ``_ring``.

    Args:
        options: How the worker runs.

    Attributes:
        concurrency: How many calls the worker runs at once.

    Raises:
        OSError: There are no descriptors left; nothing stays open.

    """

    def __init__(self, options: WorkerOptions) -> None:
        self.concurrency = options.concurrency
        # Each read of the doorbell lets one thread take one request, if there are several.
        has_threads = options.concurrency > 1 and not options.is_staged
        one_each = os.EFD_SEMAPHORE if has_threads else 0
        self._spins = bool(options.spin_us)
        with contextlib.ExitStack() as undo:
            self.slab = Slab.create(options.slab_bytes, options.concurrency)
            undo.callback(self.slab.close)
            self.request_fd = os.eventfd(0, os.EFD_CLOEXEC | one_each)
            undo.callback(os.close, self.request_fd)
            if self._spins:
                self.reply_fd = os.eventfd(0, os.EFD_CLOEXEC)
                undo.callback(os.close, self.reply_fd)
                self._their_reply_fd = os.dup(self.reply_fd)
            else:
                self.reply_fd, self._their_reply_fd = os.pipe()
                undo.callback(os.close, self.reply_fd)
            undo.callback(os.close, self._their_reply_fd)
            os.set_blocking(self.reply_fd, False)
            self._tensors, self._their_tensors = control_channel.pair()
            undo.pop_all()
        self._tensors.setblocking(False)
        self.ring = functools.partial(os.eventfd_write, self.request_fd, 1)
        """Tells the worker that there is one more request in the slab."""
        self._closed = False

    @property
    def remote_fds(self) -> tuple[int, ...]:
        """The descriptors that the worker gets, in the order in which it takes them."""
        return (
            self.slab.fd,
            self.request_fd,
            self._their_reply_fd,
            self._their_tensors.fileno(),
        )

    def detach(self) -> None:
        """Closes our copy of the worker's end of the socket; the worker has it by now.

        Our copy of the pipe's end stays open: a pipe without a writer is readable for
        ever, and that the worker died shows on its pidfd.
        """
        self._their_tensors.close()

    def num_replies(self) -> int:
        """Returns how many replies have come since the last call of this method."""
        try:
            if self._spins:
                return os.eventfd_read(self.reply_fd)
            return len(os.read(self.reply_fd, _MOST_REPLIES * WORD_BYTES)) // WORD_BYTES
        except BlockingIOError:
            return 0

    def num_started(self) -> int:
        """Returns how many requests the worker says it began."""
        started: int = self.slab.words[STARTED]
        return started

    def send_tensors(self, fd: int) -> None:
        """Sends the memfd of the request that was written last, and closes it.

        Raises:
            OSError: The worker is gone, or does not keep up.

        """
        try:
            socket.send_fds(self._tensors, [b"i"], [fd])
        finally:
            os.close(fd)

    def receive_tensors(self) -> int | None:
        """Returns the memfd of the reply that is read next; the caller closes it."""
        try:
            _, fds, _, _ = socket.recv_fds(self._tensors, 1, 1)
        except OSError:
            return None
        return fds[0] if fds else None

    def close(self) -> None:
        """Frees everything; idempotent."""
        if self._closed:
            return
        self._closed = True
        self._tensors.close()
        self._their_tensors.close()
        os.close(self.request_fd)
        os.close(self.reply_fd)
        os.close(self._their_reply_fd)
        self.slab.close()
