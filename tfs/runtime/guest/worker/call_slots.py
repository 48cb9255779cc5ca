"""The worker's end of a slab: takes calls out of it, answers them, and says which."""

from __future__ import annotations

import array
import contextlib
import mmap
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

import torch

from tfs.core.batch.batch_task import request_scope
from tfs.core.errors import (
    BY_CODE,
    Code,
    ServingError,
    forget_frames,
    serving_error,
)
from tfs.runtime.guest.current_span import current_span
from tfs.runtime.guest.faults import is_out_of_memory, leave_if_device_is_lost
from tfs.runtime.guest.guest_model import GuestModel, Output, Value
from tfs.runtime.guest.own_process import FORKS
from tfs.runtime.guest.slab import (
    JOINED,
    REPLY_WORDS,
    REQUEST_WORDS,
    REQUESTS,
    RULE,
    STARTED,
    WORD_BYTES,
    Slab,
    Slot,
)
from tfs.runtime.guest.staged_model import Outputs, StagedModel
from tfs.runtime.guest.worker.slab_tensors import InputReader, OutputWriter
from tfs.runtime.guest.worker.worker_model import LoadedModel, WorkerModel

_MAX_TEXT_BYTES = 4096
_HEADER_BYTES = REQUEST_WORDS * WORD_BYTES
_read_header = struct.Struct(f"={REQUEST_WORDS}q").unpack_from


class TakenCall:
    """A call in a slot, from when it is taken until it is answered.

    If calls overlap, it tells when it has to be answered, and whether somebody waits.

    Attributes:
        index: Number of its slot.
        slot: The slot.
        memory: Its inputs, if the slot is too small for them.
        begun_ns: When it was taken.
        loaded: The model that it calls; None until it is read.
        name: The signature that it calls; "" until it is read.

    """

    __slots__ = ("_slab", "begun_ns", "index", "loaded", "memory", "name", "slot")

    def __init__(self, slab: Slab, index: int, memory: mmap.mmap | None) -> None:
        self._slab = slab
        self.index = index
        self.slot: Slot = slab.slots[index]
        self.memory = memory
        self.begun_ns = time.perf_counter_ns()
        self.loaded: LoadedModel | None = None
        self.name = ""

    @property
    def deadline_s(self) -> float | None:
        """Its deadline; None for none."""
        deadline_ns = self._slab.words[self._slab.deadlines + self.index]
        return deadline_ns / 1e9 if deadline_ns else None

    @property
    def error(self) -> ServingError | None:
        """Why nobody waits for it any more, as the host says in the slab."""
        code = self._slab.words[self._slab.marks + self.index]
        if not code:
            return None
        return BY_CODE[Code(code)]("nobody waits for the answer any more")


class CallAnswerer:
    """Runs the calls in a slab. Confined to one thread, in inference mode.

    Args:
        slab: The slab that holds the calls.
        model: Has the model, once another thread has loaded it.
        on_out_of_memory: Called when a call ran out of memory, before it is answered;
            may end the process.

    """

    def __init__(
        self,
        slab: Slab,
        model: WorkerModel,
        on_out_of_memory: Callable[[], None],
    ) -> None:
        self._slab = slab
        self._model = model
        self._depth = FORKS.depth
        self._on_out_of_memory = on_out_of_memory
        self._inputs = InputReader(slab.map)
        self._outputs = OutputWriter(slab)
        self._num_threads = 0  # not known yet: each thread has its own number

    def answer(self, call: TakenCall) -> int | None:
        """Runs a call and writes its reply. Any failure becomes the reply.

        Returns:
            A memfd with the outputs if they do not fit the slot; the caller sends and
            closes it.

        """
        try:
            guest, inputs, num_rows = self.read(call)
            try:
                result = guest.run(call.name, inputs, num_rows)
            finally:
                FORKS.end_copy(self._depth)
            return self.reply(call, result)
        except BaseException as error:  # reading what a model returned may raise it
            self.fail(call, error)
        return None

    def read(self, call: TakenCall) -> tuple[GuestModel, dict[str, Value], int]:
        """Returns the model that a call is for, its inputs and their rows.

        The thread gets as many threads of torch as the model wants.

        Raises:
            ServingError: There is no model here yet.

        """
        memory, start = self._slab.map, call.slot.request_byte
        signature_index, num_rows, _, num_words = _read_header(memory, start)
        start += _HEADER_BYTES
        descriptor = memory[start : start + num_words * WORD_BYTES]
        loaded = call.loaded = self._model.loaded()
        if loaded.source.intra_op_threads != self._num_threads:
            self._num_threads = loaded.source.intra_op_threads
            torch.set_num_threads(self._num_threads)
        call.name = loaded.signature_names[signature_index]
        names = loaded.input_names[signature_index]
        return loaded.guest, self._inputs.read(names, descriptor, call.memory), num_rows

    def reply(self, call: TakenCall, result: Mapping[str, Output]) -> int | None:
        """Writes outputs; returns a memfd with those that do not fit the slot."""
        slab, slot = self._slab, call.slot
        words, overflow_fd = self._outputs.write(slot, result)
        try:
            overflow_out = 0
            if overflow_fd is not None:
                overflow_out = os.fstat(overflow_fd).st_size
            ns = time.perf_counter_ns() - call.begun_ns
            slab.write_words(slot.reply_word, (0, ns, overflow_out, len(words), *words))
        except BaseException:
            if overflow_fd is not None:
                with contextlib.suppress(OSError):
                    os.close(overflow_fd)
            raise
        return overflow_fd

    def fail(self, call: TakenCall, error: BaseException) -> None:
        """Writes why a call failed."""
        slab, reply_word = self._slab, call.slot.reply_word
        who = "a model"
        if call.loaded is not None:
            source = call.loaded.source
            leave_if_device_is_lost(error, source.device)
            who = f"{source.id.slashed}, signature {call.name!r}"
        ran_out = is_out_of_memory(error)
        fault = serving_error(error, who)
        # This frame refers to the error, and so to all that the model had made.
        forget_frames(fault)
        text = fault.to_bytes(_MAX_TEXT_BYTES)
        ns = time.perf_counter_ns() - call.begun_ns
        slab.write_words(reply_word, (int(fault.code), ns, 0, len(text)))
        slab.write_text(reply_word + REPLY_WORDS, text)
        del fault  # frees what the model's frames held
        if ran_out:
            self._on_out_of_memory()


_ONE: Final = (1).to_bytes(8, sys.byteorder)  # as an eventfd takes it


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
            with request_scope(call.deadline_s, call):
                return answerer.answer(call)
        return answerer.answer(call)

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
        try:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
            self._tensors.sendmsg([b"o"], [rights])
        finally:
            os.close(fd)


class StagedCalls:
    """Hands the calls in a slab to the staged model of this worker. On one thread.

    What comes while the model computes is seen between two stages by a word in the slab.

    Args:
        slots: Where calls come from.
        answerer: Reads and answers them.

    """

    def __init__(self, slots: CallSlots, answerer: CallAnswerer) -> None:
        self._slots = slots
        self._answerer = answerer
        self._guest: StagedModel | None = None
        self._looked_s = 0.0

    def run(self) -> None:
        """Answers calls until the process ends."""
        words, depth = self._slots.slab.words, FORKS.depth
        while True:
            guest = self._guest
            is_idle = guest is None or not guest.waiting
            self._look(is_idle=is_idle)
            if guest is None or is_idle:
                continue
            try:
                guest.serve(self._look)
            finally:
                FORKS.end_copy(depth)
            status = guest.status
            if status is not None:
                words[JOINED] = status.num_joined
                words[RULE] = status.as_word

    def _look(self, *, is_idle: bool = False) -> None:
        """Takes the calls that came; if there is nothing else to do, waits for one."""
        slots, num = self._slots, 0
        # The doorbell orders the accesses to memory, and is about to ring.
        if is_idle or slots.slab.words[REQUESTS] > slots.num_taken:
            num = slots.wait()
        now_s = time.monotonic()
        # What came since the last look came in the middle of that, on average.
        arrived_s = now_s if is_idle else (self._looked_s + now_s) / 2
        self._looked_s = now_s
        for _ in range(num):
            self._take_one(slots.take(), arrived_s)

    def _take_one(self, taken: TakenCall, arrived_s: float) -> None:
        slots, answerer = self._slots, self._answerer

        def end(outcome: Outputs | BaseException) -> None:
            overflow_fd = None
            try:
                if isinstance(outcome, BaseException):
                    raise outcome
                overflow_fd = answerer.reply(taken, outcome)
            except BaseException as error:  # also of outputs that cannot be read
                answerer.fail(taken, error)
            slots.give(taken, overflow_fd)

        try:
            guest, inputs, num_rows = answerer.read(taken)
            assert isinstance(guest, StagedModel)  # a worker has one version
            self._guest = guest
        except BaseException as error:
            end(error)
            return
        name, deadline_s = taken.name, taken.deadline_s
        guest.add(name, inputs, num_rows, arrived_s, deadline_s, taken, end)
