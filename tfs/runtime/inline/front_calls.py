"""Runs calls on the serving loop, without any hand-over, while every call is quick."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from threading import get_ident
from typing import Final

import torch

from tfs.core.errors import serving_error
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.servable import InferenceTask, MakeInputs, Outcome
from tfs.core.servable_id import ServableId
from tfs.runtime.inline.call_threads import CallThreads
from tfs.runtime.inline.inline_model import InlineModel, ThreadUse, read_thread_use
from tfs.runtime.placement import FRONT_LIMIT_S

log = logging.getLogger(__name__)


class FrontCalls:
    """Runs calls on the loop, unless the thread beside it has something to do.

    Thread-safe, but on any other thread than the loop's it does nothing.

    Args:
        loop: The loop on which calls run.
        thread: Takes calls that cannot run here, and all calls of models that were
            slow; counts both.
        now: The time in seconds, for deadlines.
        on_slow: Called on the loop when a call on it took over ``FRONT_LIMIT_S``, with
            the version and the seconds; from then on the model runs on the thread.

    """

    def __init__(
        self,
        loop: ServingLoop,
        thread: CallThreads,
        now: Callable[[], float],
        on_slow: Callable[[ServableId, float], None] | None,
    ) -> None:
        self._loop = loop
        self._thread = thread
        self._running = thread.running
        self._now = now
        self._on_slow = on_slow
        # Making one takes 1 us, and entering it for each call takes four.
        self._inference = torch.inference_mode()
        self._infers_for_good = False

    def compute_now(
        self,
        model: InlineModel,
        signature_name: str,
        make_inputs: MakeInputs,
        task: InferenceTask | None,
    ) -> Outcome | None:
        """Runs a call here and now, if this is the loop and nothing is in the way.

        Args:
            model: A model that runs on the loop.
            signature_name: The signature to call.
            make_inputs: Returns the inputs.
            task: Is asked first whether it should still run. None means that it should.

        Returns:
            The outcome; None if nothing was done.

        """
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
                refused = task.begin(self._now(), model.source.id.slashed)
                if refused is not None:
                    return refused
            try:
                inputs = make_inputs()
            except Exception as error:  # there may be no memory to join them in
                return serving_error(error, model.source.id.slashed)
            before = read_thread_use()
            if self._infers_for_good:
                outcome, call_s = thread.call(model, signature_name, inputs)
            else:
                with self._inference:
                    outcome, call_s = thread.call(model, signature_name, inputs)
                if loop.owns_thread:
                    _infer_for_good()
                    self._infers_for_good = True
            if call_s > FRONT_LIMIT_S:
                used = ThreadUse.of(before), ThreadUse.of(read_thread_use())
                num_calls = thread.num_calls
                call_s = model.slow_calls.own_s(num_calls, call_s, *used)
        finally:
            self._running.release()
        if call_s > FRONT_LIMIT_S and model.front is not None:
            self._leave(model, call_s)
        return outcome

    def _leave(self, model: InlineModel, call_s: float) -> None:
        """Makes the model run on the thread from now on."""
        model.front = None
        log.warning(
            "event=left_front servable=%s call_ms=%.1f limit_ms=%.0f",
            model.source.id.slashed,
            call_s * 1e3,
            FRONT_LIMIT_S * 1e3,
        )
        if self._on_slow is not None:
            self._on_slow(model.source.id, call_s)


_of_thread: Final = threading.local()


def _infer_for_good() -> None:
    """Puts the calling thread into inference mode until it ends."""
    if not hasattr(_of_thread, "inference"):
        _of_thread.inference = torch.inference_mode()
        _of_thread.inference.__enter__()
