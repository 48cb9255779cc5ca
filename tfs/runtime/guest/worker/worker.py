"""A worker process: some threads answer calls, others do everything else.

If it runs one call at a time, the main thread answers; it sleeps on one eventfd. A model
that batches a part of itself (``tfs.runtime.batched``) takes several calls at once,
because a part can join only calls that are under way together: then there is a thread
for each call. The control thread (``worker_control.py``) reads the control channel and
has versions loaded. When that channel ends, because the host closed it or is gone, the
process exits.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from typing import Final

import torch

from tfs.core.loop.spin_backoff import SpinBackoff
from tfs.runtime.guest.own_process import FORKS
from tfs.runtime.guest.side_effects import KnownFunctions
from tfs.runtime.guest.slab import REQUESTS
from tfs.runtime.guest.worker.call_answerer import CallAnswerer
from tfs.runtime.guest.worker.call_slots import CallSlots
from tfs.runtime.guest.worker.memory_limit import MemoryLimit
from tfs.runtime.guest.worker.staged_calls import StagedCalls
from tfs.runtime.guest.worker.worker_control import WorkerControl
from tfs.runtime.guest.worker.worker_model import WorkerModel
from tfs.runtime.guest.worker_options import WorkerOptions

_CANNOT_GO_ON: Final = 70  # as exit status


class Worker:
    """One worker process. ``run`` is confined to the main thread.

    Args:
        options: How it spins, how many calls it runs at once, and how much memory its
            models may add.
        call_fds: Bring calls, see :class:`CallSlots`.
        control: Brings everything else.
        known: The functions that models can replace, as they were before the fork.

    """

    def __init__(
        self,
        options: WorkerOptions,
        call_fds: list[int],
        control: socket.socket,
        known: KnownFunctions,
    ) -> None:
        self._control_socket = control
        self._spin_s = options.spin_us / 1e6
        self._spin_backoff = SpinBackoff()
        self._depth = FORKS.depth
        self._is_staged = options.is_staged
        self._num_threads = 1 if options.is_staged else options.concurrency
        self._limit = MemoryLimit(options.memory_limit_bytes)
        self._model = WorkerModel(self._limit, known)
        self._slots = CallSlots(call_fds, options.concurrency)
        self._control = WorkerControl(
            control, self._model, self._slots.slab, self._limit
        )

    def run(self) -> None:
        """Answers calls until the process ends."""
        os.register_at_fork(after_in_child=self._become_copy)
        if self._num_threads > 1:
            self._start_threads()
        self._limit.count_from_here()
        self._control.start()
        if self._num_threads > 1:
            threading.Event().wait()
        self._answer_calls()

    def _start_threads(self) -> None:
        have_begun = threading.Barrier(self._num_threads + 1)
        for index in range(self._num_threads):
            threading.Thread(
                target=self._answer_or_exit,
                args=(have_begun,),
                name=f"request-{index}",
                daemon=True,
            ).start()
        have_begun.wait()

    def _answer_calls(self) -> None:
        slots = self._slots
        answerer = CallAnswerer(slots.slab, self._model, self._limit.leave_if_leaking)
        with torch.inference_mode():
            if self._is_staged:
                StagedCalls(slots, answerer).run()
            while True:
                if self._spin_s:
                    self._spin()
                for _ in range(slots.wait()):
                    slots.answer_next(answerer)

    def _answer_or_exit(self, have_begun: threading.Barrier) -> None:
        try:
            torch.zeros(1024)  # takes what a heap of its own begins with
            have_begun.wait()
            self._answer_calls()
        except BaseException as error:  # a model may have closed all descriptors
            # As on the main thread: otherwise calls would wait until they time out.
            print(f"process {os.getpid()}: {error!r}", file=sys.stderr, flush=True)
            os._exit(_CANNOT_GO_ON)

    def _spin(self) -> None:
        if not self._spin_backoff.may_look():
            return
        words, now = self._slots.slab.words, time.perf_counter
        sequence = self._slots.num_taken
        limit_s = now() + self._spin_s
        while words[REQUESTS] == sequence and now() < limit_s:
            pass
        self._spin_backoff.note(found=words[REQUESTS] != sequence)

    def _become_copy(self) -> None:
        """Runs first in a process that a model forks from this one.

        The copy must not answer calls: that is for the process that took them. It
        belongs to the worker's process group, and ends with it.
        """
        if FORKS.depth != self._depth + 1:
            return  # a copy's copy: all is closed
        self._slots.close_descriptors()
        self._control_socket.close()
