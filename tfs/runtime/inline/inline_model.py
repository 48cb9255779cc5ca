"""A version that one thread of this process runs, or the serving loop."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Final, TypeAlias

import torch

from tfs.core.errors import forget_frames, serving_error
from tfs.core.servable import InferenceTask, MakeInputs, Outcome, Tensors
from tfs.core.version.model_profile import ModelProfile
from tfs.runtime.guest.guest_model import (
    GuestModel,
    give_device_memory_back,
    two_thread_scaling,
)
from tfs.runtime.guest.layered.auto import AutoStatus
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.own_process import FORKS
from tfs.runtime.guest.staged_model import StagedModel
from tfs.runtime.interpreter import unloaded

ComputeNow: TypeAlias = Callable[
    [str, MakeInputs, InferenceTask | None], Outcome | None
]
"""Calls a signature before it returns, for a task if there is one; None, with nothing done,
if it cannot."""

_of_thread: Final = threading.local()
"""How many threads torch may use for the calls of a thread (OpenMP's and MKL's are per
thread), if one was set; it changes only where models with different settings share one."""


class InlineModel:
    """A version on an ``InlineInterpreter``. Thread-safe.

    Args:
        source: The version.
        guest: What is called.
        enqueue: Starts a task. Never blocks, never raises.
        unload: Frees the model. Blocks.
        import_s: Processor seconds that importing and unpickling took.

    Attributes:
        source: See above.
        label: The version, for errors.
        pid: The server's own process.
        num_threads: The number of threads that torch may use for a call of it.
        loaded: What loading it took. Other code runs in this process, too, so neither its
            memory is known nor what it changes.
        last_call_s: Seconds of the last call. A caller that waits on another thread
            also waits for two wake-ups, which may take as long as five calls of a quick
            model. None before the first call, and if several run at once.
        front: Calls it on the loop, before it returns; None if it has no place there, or
            has left the loop because a call was slow. The interpreter sets it.
        guest: The model that is called; None once unloaded. Written when no call can be
            running.
        unloading: Whether it takes no more tasks; the interpreter writes it.

    """

    def __init__(
        self,
        source: ModelSource,
        guest: GuestModel,
        enqueue: Callable[[InlineModel, InferenceTask], None],
        unload: Callable[[InlineModel], None],
        *,
        import_s: float | None = None,
    ) -> None:
        self.source = source
        self.label = source.id.slashed
        self.pid = os.getpid()
        self._enqueue = enqueue
        self._unload = unload
        self.num_threads = source.intra_op_threads
        self.loaded = ModelProfile(import_s=import_s)
        self.last_call_s: float | None = None
        self.front: ComputeNow | None = None
        self.guest: GuestModel | None = guest
        self.unloading = False

    def submit(self, task: InferenceTask) -> None:
        self._enqueue(self, task)

    def compute_now(
        self, signature_name: str, make_inputs: MakeInputs
    ) -> Outcome | None:
        """Calls the model if this is the loop and nothing is in the way."""
        front = self.front
        if front is None:
            return None
        return front(signature_name, make_inputs, None)

    def unload(self) -> None:
        self._unload(self)

    def two_thread_scaling(
        self, signature_name: str, inputs: Tensors, duration_s: float
    ) -> float | None:
        """Calls the model on threads of its own; see ``InterpreterModel``."""
        guest = self.guest
        if guest is None:
            return None
        return two_thread_scaling(guest, signature_name, inputs, duration_s)

    def rehearse(self, signature_name: str, inputs: Tensors, timeout_s: float) -> None:
        """Calls the model on the caller's thread, so that no other model's call waits."""
        guest = self.guest
        if guest is not None:
            torch.set_num_threads(self.num_threads)
            with contextlib.suppress(BaseException), torch.inference_mode():
                guest.call(signature_name, inputs)

    def seed(self, seed: int | None) -> bool:
        """Sets the random numbers of the Python it runs in; see ``InterpreterModel``."""
        guest = self.guest
        if guest is not None:
            guest.seed(seed)
        return guest is not None

    @property
    def staged_status(self) -> AutoStatus | None:
        """What joining between stages was worth; None if it is computed whole."""
        guest = self.guest
        return guest.status if isinstance(guest, StagedModel) else None

    # -- for its interpreter ---------------------------------------------------------

    def call(self, signature_name: str, inputs: Tensors) -> tuple[Outcome, float]:
        """Calls the model on this thread; returns an error instead of raising it.

        Returns the outcome, and the seconds the call took. No other call may be running,
        unless the model takes several at once.
        """
        guest = self.guest
        if guest is None:
            return unloaded(self.source.id), 0.0
        begun_s = perf_counter()
        wanted = self.num_threads
        if wanted != getattr(_of_thread, "num_torch_threads", 0):
            torch.set_num_threads(wanted)
            _of_thread.num_torch_threads = wanted
        outcome: Outcome
        depth = FORKS.depth
        try:
            outcome = guest.call(signature_name, inputs)
        except BaseException as error:  # what a model returns may raise it when read
            outcome = serving_error(error, self.label)
            # The error's frames hold the model's tensors, and our callers' frames hold
            # the error.
            forget_frames(outcome)
        finally:
            if FORKS.depth != depth:  # a call of end_copy would take longer
                FORKS.end_copy(depth)
        return outcome, perf_counter() - begun_s

    def drop(self) -> None:
        """Closes the guest. No call of it may be running; repeatable."""
        guest, self.guest = self.guest, None
        if guest is None:
            return
        # Modules and importers of a package hold each other: their memory goes when
        # whoever unloads collects, once for all that it unloads together
        # (tfs/core/process_memory.py).
        guest.close()
        if self.source.device != "cpu":
            # A device's is short, and nobody else returns what torch keeps of it: the
            # next version may need it.
            del guest
            gc.collect()
            give_device_memory_back()
