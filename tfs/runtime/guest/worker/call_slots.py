"""The worker's end of a slab: takes calls out of it, and says which are answered."""

from __future__ import annotations

import array
import mmap
import os
import socket
import sys
import threading
from typing import Final

from tfs.core.errors import BY_CODE, Code, ServingError
from tfs.core.request_scope import request_scope
from tfs.runtime.guest.current_span import current_span
from tfs.runtime.guest.slab import STARTED, Slab, Slot
from tfs.runtime.guest.worker.call_answerer import CallAnswerer

_ONE: Final = (1).to_bytes(8, sys.byteorder)  # as an eventfd takes it


class TakenCall:
    """A call in a slot, from when it is taken until it is answered.

    Attributes:
        index: Number of its slot.
        slot: The slot.
        memory: Its inputs, if the slot is too small for them.
        mark: Tells whether somebody waits for it, if calls overlap.

    """

    __slots__ = ("_slab", "index", "mark", "memory", "slot")

    def __init__(self, slab: Slab, index: int, memory: mmap.mmap | None) -> None:
        self._slab = slab
        self.index = index
        self.slot: Slot = slab.slots[index]
        self.memory = memory
        self.mark = _SlotMark(slab, index)

    @property
    def deadline_s(self) -> float | None:
        """Its deadline, if calls overlap; None for none."""
        deadline_ns = self._slab.words[self._slab.deadlines + self.index]
        return deadline_ns / 1e9 if deadline_ns else None


class CallSlots:
    """Gives out calls in their order, and takes replies in any. Thread-safe.

    Args:
        fds: The shared memory; the eventfd that the host rings for each request; what
            the worker rings for each reply, a pipe or an eventfd; and the socket for
            memfds with the tensors that no slot holds, in the order of requests one way
            and of replies the other. Owned from now on.
        num_calls: How many calls are under way at once. If there are several, a batched
            part of a model may ask for a call's deadline, and whether somebody still waits
            for it.

    """

    def __init__(self, fds: list[int], num_calls: int) -> None:
        slab_fd, self._request_fd, self._reply_fd, tensors_fd = fds
        self.slab = Slab(slab_fd, num_calls)
        self._tensors = socket.socket(fileno=tensors_fd)
        self._in_scope = num_calls > 1
        # Guards the slab's counters and rings, the order of memfds on the socket, and
        # the fields below; leaf lock. No model runs under it.
        self._lock = threading.Lock()
        self.num_taken = 0
        self._num_given = 0

    def wait(self) -> int:
        """Blocks until there are requests, and returns how many the caller has to answer."""
        return os.eventfd_read(self._request_fd)

    def answer_next(self, answerer: CallAnswerer) -> None:
        """Answers the next request, of which ``wait`` has told."""
        call = self.take()
        span = self.slab.read_span(call.index)
        if span is None:
            overflow_fd = self._answer(answerer, call)
        else:
            with current_span(span):
                overflow_fd = self._answer(answerer, call)
        self.give(call, overflow_fd)

    def _answer(self, answerer: CallAnswerer, call: TakenCall) -> int | None:
        if self._in_scope:
            with request_scope(call.deadline_s, call.mark):
                return answerer.answer(call.slot, call.memory)
        return answerer.answer(call.slot, call.memory)

    def take(self) -> TakenCall:
        """Takes the next request, of which ``wait`` has told."""
        slab = self.slab
        with self._lock:
            index = slab.words[slab.request_ring + self.num_taken % slab.num_slots]
            self.num_taken += 1
            slab.words[STARTED] = self.num_taken
            slot = slab.slots[index]
            overflow_bytes = slab.words[slot.request_word + 2]
            memory = self._receive_tensors(overflow_bytes) if overflow_bytes else None
        return TakenCall(slab, index, memory)

    def give(self, call: TakenCall, overflow_fd: int | None) -> None:
        """Says that a call is answered; sends and closes a memfd with its outputs."""
        slab = self.slab
        with self._lock:
            if overflow_fd is not None:
                self._send_tensors(overflow_fd)
            ring = slab.reply_ring + self._num_given % slab.num_slots
            slab.words[ring] = call.index
            self._num_given += 1
            self._ring()

    def close_descriptors(self) -> None:
        """Closes what leads to the host; the slab stays mapped."""
        for fd in (self.slab.fd, self._request_fd, self._reply_fd):
            os.close(fd)
        self._tensors.close()

    def _ring(self) -> None:
        """Tells the host that there is one more reply in the slab.

        It uses a pipe, because the kernel assumes that a writer to a pipe will soon
        sleep: if no other core is idle, it wakes the host's thread on this core. With
        an eventfd that thread stays on its old core and takes it from the worker that
        computes there, while this core is idle. A worker that spins does not sleep, and
        uses an eventfd.
        """
        try:
            os.write(self._reply_fd, _ONE)
        except BrokenPipeError:
            return  # the host is gone, and this process will end soon

    def _receive_tensors(self, size_bytes: int) -> mmap.mmap:
        """Maps the memfd of the request that was taken last. Blocks until it is there."""
        _, fds, _, _ = socket.recv_fds(self._tensors, 1, 1)
        try:
            return mmap.mmap(fds[0], size_bytes)
        finally:
            os.close(fds[0])

    def _send_tensors(self, fd: int) -> None:
        """Sends the memfd of the next reply, and closes it."""
        try:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
            self._tensors.sendmsg([b"o"], [rights])
        finally:
            os.close(fd)


class _SlotMark:
    """Tells whether somebody waits for a call: the host says so in the slab."""

    __slots__ = ("_slab", "_word")

    def __init__(self, slab: Slab, index: int) -> None:
        self._slab = slab
        self._word = slab.marks + index

    @property
    def error(self) -> ServingError | None:
        code = self._slab.words[self._word]
        if not code:
            return None
        return BY_CODE[Code(code)]("nobody waits for the answer any more")
