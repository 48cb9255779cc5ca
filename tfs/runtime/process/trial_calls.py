"""Calls a model before it serves: to rehearse it, or to measure it on two threads.

These calls go through the worker's control thread and not through the lanes, so nothing
on the loop waits for them. One that hangs ends the worker and nothing else.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tfs.core.errors import DeadlineExceeded, ServingError
from tfs.core.servable import Tensors
from tfs.core.serving_loop import ServingLoop
from tfs.core.tensor_view import TensorView
from tfs.runtime.guest.sealed_file import new_memfd
from tfs.runtime.process.process_options import ProcessOptions
from tfs.runtime.process.worker import OnReply, Worker
from tfs.runtime.process.worker_life import WorkerLife
from tfs.runtime.process.worker_requests import WorkerRequests

log = logging.getLogger(__name__)

# Added to the time that the calls of two threads should take.
_SCALE_PATIENCE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class TrialCall:
    """A model that serves nobody yet, and what it is called with. Immutable.

    Attributes:
        who: The version, for messages.
        model_id: The model's number on its worker.
        signature_name: Key of the signature.
        inputs: The inputs by name.

    """

    who: str
    model_id: int
    signature_name: str
    inputs: Tensors


@dataclass(frozen=True, slots=True)
class TwoThreads:
    """The result of calling a model from two threads. Immutable.

    Attributes:
        scaling: Calls per second of two threads over those of one; None: not measured.
        process_changes: What the model has changed in its process while it was loaded,
            and since.

    """

    scaling: float | None
    process_changes: str


class TrialCalls:
    """Has an interpreter's worker try models. Thread-safe; blocks, never on the loop.

    Args:
        requests: Sends requests to the worker.
        life: The life of the worker, which is ended if a trial does not return.
        loop: The serving loop.
        options: Limits, timeouts and how workers are made.

    """

    def __init__(
        self,
        requests: WorkerRequests,
        life: WorkerLife,
        loop: ServingLoop,
        options: ProcessOptions,
    ) -> None:
        self._requests = requests
        self._life = life
        self._loop = loop
        self._options = options

    def two_thread_scaling(
        self, call: TrialCall, duration_s: float, last_call_s: float | None
    ) -> TwoThreads | None:
        """Has the worker call the model from two threads. Blocks.

        If the worker does not return from it, it is replaced, and nothing is measured.

        Args:
            call: The call to repeat.
            duration_s: About how long to measure.
            last_call_s: How long one such call took; None if unknown.

        Raises:
            ServingError: The worker died over it.

        """
        fields: dict[str, object] = {"duration_s": duration_s}
        patience_s = self._options.call_timeout_s
        if last_call_s is not None:
            patience_s = min(patience_s, 10 * last_call_s + _SCALE_PATIENCE_S)
        worker = self._life.worker
        try:
            reply = self._try(
                "scale",
                call,
                fields,
                8 * duration_s + patience_s,
                background=False,
            )
        except DeadlineExceeded:
            log.warning("event=two_threads_hang servable=%s", call.who)
            self._end_hanging(worker, "two calls of its model at once hang")
            return None
        scaling = reply.get("scaling")
        return TwoThreads(
            scaling if isinstance(scaling, float) else None, str(reply["changes"])
        )

    def rehearse(self, call: TrialCall, timeout_s: float) -> float:
        """Has the worker call the model once, at its lowest priority. Blocks.

        An error is not reported here; it shows when the model is called again. If the
        worker does not return from the call, it is replaced.

        Returns:
            Processor seconds that the call took in the worker; infinite if it failed.

        """
        worker = self._life.worker
        try:
            reply = self._try(
                "rehearse",
                call,
                {},
                timeout_s,
                background=not self._options.is_urgent(),
            )
        except DeadlineExceeded:
            self._end_hanging(worker, "a call before it served hangs")
            return math.inf
        except ServingError:
            return math.inf
        took_s = reply.get("call_s")
        return took_s if isinstance(took_s, float) else math.inf

    def seed(self, who: str, seed: int | None) -> bool:
        """Sets the worker's random numbers; returns whether it did. Blocks."""

        def send(worker: Worker, on_reply: OnReply) -> None:
            worker.send("seed", {"seed": seed}, (), on_reply, background=False)

        late = DeadlineExceeded(f"{who}: its interpreter does not answer")
        try:
            self._requests.answer(who, send, _SCALE_PATIENCE_S, late)
        except ServingError as error:
            log.info("event=not_seeded servable=%s error=%s", who, error)
            return False
        return True

    def _end_hanging(self, worker: Worker | None, why: str) -> None:
        """Replaces a worker, if it is still the present one."""

        def end() -> None:
            if worker is not None and self._life.worker is worker:
                self._life.end(f"was ended because {why}")

        self._loop.post(end)

    def _try(
        self,
        op: str,
        call: TrialCall,
        fields: Mapping[str, object],
        timeout_s: float,
        *,
        background: bool,
    ) -> Mapping[str, object]:
        """Has the worker call a model that does not serve yet. Blocks.

        Raises:
            ServingError: The worker died over it, or does not answer.

        """
        views = {
            name: TensorView(
                view.dtype,
                view.shape,
                view.data if isinstance(view.data, tuple) else bytes(view.data),
            )
            for name, view in call.inputs.items()
        }
        # Inputs go to a memfd on this thread, so that the loop copies no large batch.
        fd = new_memfd("probe")
        try:
            with open(fd, "wb", closefd=False) as file:
                pickle.dump(views, file)
            message = {
                **fields,
                "model": call.model_id,
                "signature": call.signature_name,
            }

            def send(worker: Worker, on_reply: OnReply) -> None:
                worker.send(op, message, (fd,), on_reply, background=background)

            late = DeadlineExceeded(
                f"{call.who}: a call before it served took too long"
            )
            return self._requests.answer(call.who, send, timeout_s, late)
        finally:
            os.close(fd)
