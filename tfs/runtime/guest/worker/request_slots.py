"""Threads of a worker that run several calls of one model at the same time.

They are for models that batch a part of themselves (``tfs.runtime.batched``), because a
part can join only calls that are under way together. The model has a slab of its own,
with a slot and a thread for each call; see :mod:`tfs.runtime.guest.slab`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Final

import torch

from tfs.core.errors import BY_CODE, Code, ServingError
from tfs.core.request_scope import request_scope
from tfs.core.thread_priority import answer_soon
from tfs.runtime.guest.loaded_model import ForkWatch, LoadedModel
from tfs.runtime.guest.slab import REPLIES, STARTED, Slab
from tfs.runtime.guest.worker.call_answerer import CallAnswerer
from tfs.runtime.guest.worker.call_channel import CallChannel

_EXIT_STATUS: Final = 70  # as of a worker whose main thread cannot go on


class RequestSlots:
    """Runs up to ``concurrency`` calls of a model at once. Thread-safe.

    Calls begin in the order of their requests. If a call uses a batched part, that
    knows the call's deadline and whether somebody still waits for it.

    Args:
        channel: The channel of the model; owned from now on.
        model_id: The model's number.
        loaded: The model.
        forks: Knows whether this process is a copy that a model forked.
        on_call: Called at the end of each call, on its thread.
        on_out_of_memory: Called when a call ran out of memory, before it is answered.

    """

    def __init__(
        self,
        channel: CallChannel,
        model_id: int,
        loaded: LoadedModel,
        forks: ForkWatch,
        on_call: Callable[[LoadedModel], None],
        on_out_of_memory: Callable[[], None],
    ) -> None:
        self._channel = channel
        self._slab = Slab(channel.slab_fd, loaded.source.concurrency)
        self._models = {model_id: loaded}
        self._forks = forks
        self._on_call = on_call
        self._on_out_of_memory = on_out_of_memory
        # Guards the slab's counters and rings, the order of memfds on the channel, and
        # the fields below; leaf lock. No model runs under it.
        self._lock = threading.Lock()
        self._num_taken = 0
        self._num_given = 0
        self._closing = False
        self._threads = [
            threading.Thread(target=self._run, name=f"request-{index}", daemon=True)
            for index in range(loaded.source.concurrency)
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
        self._models.clear()
        self.close_channel()  # the slab is unmapped with the last tensor over it

    def close_channel(self) -> None:
        """Closes only the channel."""
        self._channel.close()

    def _run(self) -> None:
        answer_soon()  # the thread that made this one need not be quick
        try:
            self._answer_calls()
        except BaseException as error:  # a model may have closed all descriptors
            # As on the main thread: otherwise calls would wait until they time out.
            print(f"process {os.getpid()}: {error!r}", file=sys.stderr, flush=True)
            os._exit(_EXIT_STATUS)

    def _answer_calls(self) -> None:
        slab, lock = self._slab, self._lock
        answerer = CallAnswerer(slab, self._models, self._forks, self._on_out_of_memory)
        with torch.inference_mode():
            while True:
                # A semaphore: each read takes one request.
                os.eventfd_read(self._channel.request_fd)
                if self._closing:
                    return
                with lock:
                    index = slab.words[
                        slab.request_ring + self._num_taken % slab.num_slots
                    ]
                    self._num_taken += 1
                    slab.words[STARTED] = self._num_taken
                    slot = slab.slots[index]
                    overflow_bytes = answerer.overflow_bytes(slot)
                    memory = None
                    if overflow_bytes:
                        memory = self._channel.receive_tensors(overflow_bytes)
                deadline_ns = slab.words[slab.deadlines + index]
                mark = _SlotMark(slab, index)
                with request_scope(deadline_ns / 1e9 if deadline_ns else None, mark):
                    loaded, overflow_fd = answerer.answer(slot, memory)
                with lock:
                    if overflow_fd is not None:
                        self._channel.send_tensors(overflow_fd)
                    ring = slab.reply_ring + self._num_given % slab.num_slots
                    slab.words[ring] = index
                    self._num_given += 1
                    slab.words[REPLIES] = self._num_given
                    self._channel.ring()
                if loaded is not None:
                    self._on_call(loaded)
                loaded = memory = None  # unloading must hold the last reference


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
