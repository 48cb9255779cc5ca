"""A worker process: answers calls on its main thread, and does everything else on others.

The main thread sleeps on one eventfd and only answers calls. The control thread
(``worker_control.py``) reads the control channel and has versions loaded. When that
channel ends, because the host closed it or is gone, the process exits.
"""

from __future__ import annotations

import os
import socket
import time

import torch

from tfs.core.spin_backoff import SpinBackoff
from tfs.runtime.guest.loaded_model import ForkWatch
from tfs.runtime.guest.side_effects.replaced_functions import KnownFunctions
from tfs.runtime.guest.slab import NUM_SLOTS, REQUESTS
from tfs.runtime.guest.worker.call_channel import CallChannel
from tfs.runtime.guest.worker.memory_limit import MemoryLimit
from tfs.runtime.guest.worker.request_slots import RequestSlots
from tfs.runtime.guest.worker.worker_control import WorkerControl
from tfs.runtime.guest.worker.worker_models import WorkerModels
from tfs.runtime.guest.worker_options import WorkerOptions


class Worker:
    """One worker process. ``run`` is confined to the main thread.

    Args:
        options: How it spins, and how much memory its models may add.
        channel: Brings calls.
        control: Brings everything else.
        known: The functions that models can replace, as they were before the fork.

    """

    def __init__(
        self,
        options: WorkerOptions,
        channel: CallChannel,
        control: socket.socket,
        known: KnownFunctions,
    ) -> None:
        self._channel = channel
        self._control_socket = control
        self._spin_s = options.spin_us / 1e6
        self._spin_backoff = SpinBackoff()
        self._forks = ForkWatch()
        self._limit = MemoryLimit(options.memory_limit_bytes)
        self._models = WorkerModels(control, self._limit, self._forks, known)
        self._slots = RequestSlots(
            channel,
            NUM_SLOTS,
            self._models.by_id,
            self._forks,
            self._models.note_call,
            self._limit.leave_if_leaking,
        )
        self._control = WorkerControl(
            control, self._models, self._slots.slab, self._limit
        )

    def run(self, archive: bytes = b"") -> None:
        """Answers calls until the process ends.

        Args:
            archive: What a spare warms up with first, before it has models.

        """
        os.register_at_fork(after_in_child=self._become_copy)
        self._control.start()
        if archive:
            self._control.start_warm_up(archive)
        slots, request_fd = self._slots, self._channel.request_fd
        answerer = slots.answerer()
        with torch.inference_mode():
            while True:
                if self._spin_s:
                    self._spin()
                for _ in range(os.eventfd_read(request_fd)):
                    slots.answer_next(answerer)

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
        if self._forks.is_copy:
            return  # a copy's copy: all is closed
        self._forks.is_copy = True
        self._channel.close()
        self._models.close_channels()
        self._control_socket.close()
