"""Answers the calls in a slab: on the worker's main thread, or on threads of a model.

A model that batches a part of itself (``tfs.runtime.batched``) takes several calls at
once, because a part can join only calls that are under way together. It has a slab of
its own, with a slot and a thread for each call; see :mod:`tfs.runtime.guest.slab`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Final

import torch

from tfs.core.errors import BY_CODE, Code, ServingError
from tfs.core.request_scope import request_scope
from tfs.core.thread_priority import answer_soon
from tfs.runtime.guest.loaded_model import ForkWatch, LoadedModel
from tfs.runtime.guest.slab import STARTED, Slab
from tfs.runtime.guest.worker.call_answerer import CallAnswerer
from tfs.runtime.guest.worker.call_channel import CallChannel

_EXIT_STATUS: Final = 70  # as of a worker whose main thread cannot go on


class RequestSlots:
    """Takes requests in their order, and gives replies in any. Thread-safe.

    Args:
        channel: Leads to the host; owned from now on.
        num_slots: How many calls the slab holds.
        models: The loaded models by number; other threads may change it meanwhile.
        forks: Knows whether this process is a copy that a model forked.
        on_call: Called at the end of each call, on its thread.
        on_out_of_memory: Called when a call ran out of memory, before it is answered.

    """

    def __init__(
        self,
        channel: CallChannel,
        num_slots: int,
        models: Mapping[int, LoadedModel],
        forks: ForkWatch,
        on_call: Callable[[LoadedModel], None],
        on_out_of_memory: Callable[[], None],
    ) -> None:
        self._channel = channel
        self.slab = Slab(channel.slab_fd, num_slots)
        self._models = models
        self._forks = forks
        self._on_call = on_call
        self._on_out_of_memory = on_out_of_memory
        # Guards the slab's counters and rings, the order of memfds on the channel, and
        # the fields below; leaf lock. No model runs under it.
        self._lock = threading.Lock()
        self.num_taken = 0
        self._num_given = 0

    def answerer(self) -> CallAnswerer:
        """Returns what computes on the calling thread."""
        return CallAnswerer(
            self.slab, self._models, self._forks, self._on_out_of_memory
        )

    def answer_next(self, answerer: CallAnswerer, *, in_scope: bool = False) -> None:
        """Answers the next request, of which the doorbell has told.

        Args:
            answerer: The thread's.
            in_scope: Whether a batched part of the model may ask for the call's
                deadline, and whether somebody still waits for it.

        """
        slab, lock = self.slab, self._lock
        with lock:
            index = slab.words[slab.request_ring + self.num_taken % slab.num_slots]
            self.num_taken += 1
            slab.words[STARTED] = self.num_taken
            slot = slab.slots[index]
            overflow_bytes = answerer.overflow_bytes(slot)
            memory = None
            if overflow_bytes:
                memory = self._channel.receive_tensors(overflow_bytes)
        if in_scope:
            deadline_ns = slab.words[slab.deadlines + index]
            mark = _SlotMark(slab, index)
            with request_scope(deadline_ns / 1e9 if deadline_ns else None, mark):
                loaded, overflow_fd = answerer.answer(slot, memory)
        else:
            loaded, overflow_fd = answerer.answer(slot, memory)
        with lock:
            if overflow_fd is not None:
                self._channel.send_tensors(overflow_fd)
            slab.words[slab.reply_ring + self._num_given % slab.num_slots] = index
            self._num_given += 1
            self._channel.ring()
        if loaded is not None:
            self._on_call(loaded)

    def close_channel(self) -> None:
        """Closes the channel; the slab is unmapped with the last tensor over it."""
        self._channel.close()


class RequestThreads:
    """Runs up to ``concurrency`` calls of a model at once. Thread-safe.

    Args:
        slots: The model's own; owned from now on.
        channel: The channel of the slots.
        num_threads: How many calls it runs at once.

    """

    def __init__(
        self, slots: RequestSlots, channel: CallChannel, num_threads: int
    ) -> None:
        self._slots = slots
        self._channel = channel
        self._closing = False
        self._threads = [
            threading.Thread(target=self._run, name=f"request-{index}", daemon=True)
            for index in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def num_threads(self) -> int:
        """How many calls it runs at once."""
        return len(self._threads)

    def close(self) -> None:
        """Ends the threads; no call may come any more. Blocks until calls have ended."""
        self._closing = True
        os.eventfd_write(self._channel.request_fd, len(self._threads))
        for thread in self._threads:
            thread.join()
        self.close_channel()

    def close_channel(self) -> None:
        """Closes only the channel."""
        self._slots.close_channel()

    def _run(self) -> None:
        answer_soon()  # the thread that made this one need not be quick
        try:
            with torch.inference_mode():
                answerer = self._slots.answerer()
                while True:
                    # A semaphore: each read takes one request.
                    os.eventfd_read(self._channel.request_fd)
                    if self._closing:
                        return
                    self._slots.answer_next(answerer, in_scope=True)
        except BaseException as error:  # a model may have closed all descriptors
            # As on the main thread: otherwise calls would wait until they time out.
            print(f"process {os.getpid()}: {error!r}", file=sys.stderr, flush=True)
            os._exit(_EXIT_STATUS)


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
