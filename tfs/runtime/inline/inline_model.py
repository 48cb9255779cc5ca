"""A version that one thread of this process runs, or the serving loop."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from resource import RUSAGE_THREAD, getrusage, struct_rusage
from typing import Final, Self, TypeAlias

import torch

from tfs.core.servable import InferenceTask, MakeInputs, Outcome, Tensors
from tfs.core.version.model_profile import ModelProfile
from tfs.runtime.guest.guest_model import (
    GuestModel,
    give_device_memory_back,
    two_thread_scaling,
)
from tfs.runtime.guest.layered.auto import AutoStatus
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.staged_model import StagedModel
from tfs.runtime.placement import FRONT_LIMIT_S


@dataclass(frozen=True, slots=True)
class ThreadUse:
    """How much a thread has used the machine up to some moment. Immutable.

    Attributes:
        cpu_s: Seconds that it computed.
        num_waits: How often it gave up its core by itself, because it slept, or waited
            for a lock, a file or another thread.

    """

    cpu_s: float
    num_waits: int

    @classmethod
    def of(cls, usage: struct_rusage) -> Self:
        """Converts from what the system reports."""
        return cls(usage.ru_utime + usage.ru_stime, usage.ru_nvcsw)


read_thread_use: Final[Callable[[], struct_rusage]] = partial(getrusage, RUSAGE_THREAD)
"""Reads the calling thread's use; quick enough for every call."""


class SlowCalls:
    """Tells slow calls of a model from calls that the machine made slow.

    Confined to the thread that calls. A call that computed for longer than the limit is
    slow. A call that waited for longer may have slept, or may have waited for another
    thread that had Python's lock and got no core. A thread that waits for Python's lock
    wakes once in every switch interval (``sys.getswitchinterval``). If a call waited
    beyond the limit even when one interval is subtracted for each wait, it slept, and
    is slow. Any other call that waited is slow only if there was another one a short
    while ago. Time in which a call neither computed nor waited was given to other
    threads by the kernel.

    Args:
        limit_s: How long a call may take.

    """

    __slots__ = ("_limit_s", "_num_calls_at_wait")

    _FORGIVEN_AFTER: Final = 1000  # calls

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._num_calls_at_wait: int | None = None

    def own_s(
        self, num_calls: int, wall_s: float, before: ThreadUse, after: ThreadUse
    ) -> float:
        """Returns the seconds that a call beyond the limit itself took.

        Args:
            num_calls: How many there were before.
            wall_s: How long it lasted.
            before: What its thread had used when it began.
            after: What it had used when it ended.

        """
        computed_s = min(wall_s, after.cpu_s - before.cpu_s)
        if computed_s > self._limit_s or after.num_waits == before.num_waits:
            return computed_s
        num_waits = after.num_waits - before.num_waits
        for_lock_s = num_waits * sys.getswitchinterval()
        if wall_s - computed_s - for_lock_s > self._limit_s:
            return wall_s
        previous, self._num_calls_at_wait = self._num_calls_at_wait, num_calls
        if previous is None or num_calls - previous > self._FORGIVEN_AFTER:
            return computed_s
        return wall_s


ComputeNow: TypeAlias = (
    "Callable[[InlineModel, str, MakeInputs, InferenceTask | None], Outcome | None]"
)
"""Calls a signature of a model before it returns, for a task if there is one; None, with
nothing done, if it cannot."""


class InlineModel:
    """A version on an ``InlineInterpreter``. Thread-safe.

    Args:
        source: The version.
        guest: What is called.
        enqueue: Starts a task. Never blocks, never raises.
        unload: Frees the model. Blocks.
        front: See below.
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
            has left the loop because a call was slow.
        slow_calls: Decides which calls on the loop were slow.
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
        front: ComputeNow | None = None,
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
        self.front = front
        self.slow_calls = SlowCalls(FRONT_LIMIT_S)
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
        return front(self, signature_name, make_inputs, None)

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

    def drop(self) -> None:
        """Closes the guest. No call of it may be running; repeatable."""
        guest, self.guest = self.guest, None
        if guest is None:
            return
        # Modules and importers of a package hold each other: their memory goes when
        # whoever unloads collects, once for all that it unloads together
        # (managers/loading/load_admission.py).
        guest.close()
        if self.source.device != "cpu":
            # A device's is short, and nobody else returns what torch keeps of it: the
            # next version may need it.
            del guest
            gc.collect()
            give_device_memory_back()
