"""Calls that run on the serving loop, and which of them were too slow for it."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from resource import RUSAGE_THREAD, getrusage, struct_rusage
from threading import get_ident
from typing import Final, Self

import torch

from tfs.core.errors import serving_error
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.servable import InferenceTask, MakeInputs, Outcome
from tfs.core.servable_id import ServableId
from tfs.runtime.inline.call_threads import CallThreads
from tfs.runtime.inline.inline_model import InlineModel
from tfs.runtime.placement import FRONT_LIMIT_S

log = logging.getLogger(__name__)


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


class FrontCalls:
    """Runs calls of a model on the loop, unless the thread beside it has something to do.

    Thread-safe, but on any other thread than the loop's it does nothing.

    Args:
        model: The model.
        loop: The loop on which calls run.
        thread: Takes calls that cannot run here, and all calls once one was slow; counts
            both.
        now: The time in seconds, for deadlines.
        on_slow: Called on the loop when a call on it took over ``FRONT_LIMIT_S``, with
            the version and the seconds; from then on the model runs on the thread.

    """

    def __init__(
        self,
        model: InlineModel,
        loop: ServingLoop,
        thread: CallThreads,
        now: Callable[[], float],
        on_slow: Callable[[ServableId, float], None] | None,
    ) -> None:
        self._model = model
        self._loop = loop
        self._thread = thread
        self._running = thread.running
        self._now = now
        self._on_slow = on_slow
        self._slow_calls = SlowCalls(FRONT_LIMIT_S)
        # Making one takes 1 us, and entering it for each call takes four.
        self._inference = torch.inference_mode()
        self._infers_for_good = False

    def compute_now(
        self,
        signature_name: str,
        make_inputs: MakeInputs,
        task: InferenceTask | None,
    ) -> Outcome | None:
        """Runs a call here and now, if this is the loop and nothing is in the way.

        Args:
            signature_name: The signature to call.
            make_inputs: Returns the inputs.
            task: Is asked first whether it should still run. None means that it should.

        Returns:
            The outcome; None if nothing was done.

        """
        model = self._model
        thread = self._thread
        loop = self._loop
        if get_ident() != loop.thread_ident or thread.queue:
            return None
        if not self._running.acquire(blocking=False):
            return None
        try:
            if thread.refusal is not None or model.unloading:
                return None
            if task is not None:
                refused = task.begin(self._now(), model.label)
                if refused is not None:
                    return refused
            try:
                inputs = make_inputs()
            except Exception as error:  # there may be no memory to join them in
                return serving_error(error, model.label)
            before = read_thread_use()
            if self._infers_for_good:
                outcome, call_s = model.call(signature_name, inputs)
            else:
                with self._inference:
                    outcome, call_s = model.call(signature_name, inputs)
                if loop.owns_thread:
                    _infer_for_good()
                    self._infers_for_good = True
            model.last_call_s = call_s
            thread.num_calls += 1
            if call_s > FRONT_LIMIT_S:
                used = ThreadUse.of(before), ThreadUse.of(read_thread_use())
                call_s = self._slow_calls.own_s(thread.num_calls, call_s, *used)
        finally:
            self._running.release()
        if call_s > FRONT_LIMIT_S and model.front is not None:
            self._leave(call_s)
        return outcome

    def _leave(self, call_s: float) -> None:
        model = self._model
        model.front = None
        log.warning(
            "event=left_front servable=%s call_ms=%.1f limit_ms=%.0f",
            model.label,
            call_s * 1e3,
            FRONT_LIMIT_S * 1e3,
        )
        if self._on_slow is not None:
            self._on_slow(model.source.id, call_s)


_of_thread: Final = threading.local()


def _infer_for_good() -> None:
    if not hasattr(_of_thread, "inference"):
        _of_thread.inference = torch.inference_mode()
        _of_thread.inference.__enter__()
