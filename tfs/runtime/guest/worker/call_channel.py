"""The worker's ends of a slab: its doorbells, and the socket for what does not fit."""

from __future__ import annotations

import array
import mmap
import os
import socket
import sys
from dataclasses import dataclass
from typing import Final

_ONE: Final = (1).to_bytes(8, sys.byteorder)  # as an eventfd takes it


@dataclass(frozen=True, slots=True)
class CallChannel:
    """Immutable; its owner closes it.

    Attributes:
        slab_fd: The shared memory.
        request_fd: Rung by the host for each request.
        reply_fd: Rung by the worker for each reply: a pipe, or an eventfd.
        tensors: Carries memfds with tensors that a slot is too small for, in the order
            of requests one way and of replies the other.

    """

    slab_fd: int
    request_fd: int
    reply_fd: int
    tensors: socket.socket

    @classmethod
    def of_fds(cls, fds: list[int]) -> CallChannel:
        """Takes over four descriptors, in the order of the attributes."""
        slab_fd, request_fd, reply_fd, tensors_fd = fds
        return cls(slab_fd, request_fd, reply_fd, socket.socket(fileno=tensors_fd))

    def ring(self) -> None:
        """Tells the host that there is one more reply in the slab.

        It uses a pipe, because the kernel assumes that a writer to a pipe will soon
        sleep: if no other core is idle, it wakes the host's thread on this core. With
        an eventfd that thread stays on its old core and takes it from the worker that
        computes there, while this core is idle. A worker that spins does not sleep, and
        uses an eventfd.
        """
        try:
            os.write(self.reply_fd, _ONE)
        except BrokenPipeError:
            return  # the host is gone, and this process will end soon

    def receive_tensors(self, size_bytes: int) -> mmap.mmap:
        """Maps the memfd of the request that was taken last. Blocks until it is there."""
        _, fds, _, _ = socket.recv_fds(self.tensors, 1, 1)
        try:
            return mmap.mmap(fds[0], size_bytes)
        finally:
            os.close(fds[0])

    def send_tensors(self, fd: int) -> None:
        """Sends the memfd of the next reply, and closes it."""
        try:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
            self.tensors.sendmsg([b"o"], [rights])
        finally:
            os.close(fd)

    def close(self) -> None:
        """Closes everything."""
        for fd in (self.slab_fd, self.request_fd, self.reply_fd):
            os.close(fd)
        self.tensors.close()
