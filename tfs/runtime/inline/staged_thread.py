"""The thread of a model that is computed in stages, between which requests join."""

from __future__ import annotations

from functools import partial

import torch

from tfs.core.clock import Clock
from tfs.core.errors import ServingError, serving_error
from tfs.core.servable import InferenceTask, Outcome
from tfs.core.system.thread_priority import answer_soon
from tfs.runtime.guest.staged_model import Outputs, StagedModel
from tfs.runtime.guest.torch_tensor import to_torch, to_view
from tfs.runtime.inline.call_threads import CallThreads
from tfs.runtime.inline.inline_model import InlineModel
from tfs.runtime.interpreter import finish


class StagedThread(CallThreads):
    """Hands the tasks of one model to its ``StagedModel``, on one thread. Thread-safe.

    A task that comes while the model computes is taken from the queue between two stages,
    without a hand-over to another thread.

    Args:
        name: Names the thread.
        max_queued: Tasks that may wait to be seen, and to be computed; one more is
            answered Unavailable.
        clock: Deadlines go by it.
        guest: The model.

    """

    def __init__(
        self, name: str, max_queued: int, clock: Clock, guest: StagedModel
    ) -> None:
        super().__init__(name, max_queued, clock)
        self._guest = guest

    def put(self, model: InlineModel, task: InferenceTask) -> None:
        task.arrived_s = self._clock.now()
        super().put(model, task)

    # -- on the thread -------------------------------------------------------------------

    def _run(self) -> None:
        answer_soon()
        guest = self._guest
        torch.set_num_threads(guest.num_threads)
        with torch.inference_mode():
            while True:
                with self._lock:
                    while not (guest.waiting or self.queue or self.refusal):
                        self._wake.wait()
                    refusal = self.refusal
                if refusal is not None:
                    for call in guest.waiting:
                        call.end(refusal)
                    return
                self._look()
                guest.serve(self._look)

    def _look(self) -> None:
        """Takes the tasks that came."""
        while self.queue and len(self._guest.waiting) < self._max_queued:
            with self._lock:
                item = self.queue.popleft() if self.queue else None
            if not isinstance(item, tuple):  # they were refused meanwhile
                return
            task = item[1]
            try:
                inputs = {name: to_torch(view) for name, view in task.inputs.items()}
            except Exception as error:  # there may be no memory to copy them to
                self._end(task, serving_error(error, self._name))
                continue
            self._guest.add(
                task.signature_name,
                inputs,
                task.num_rows,
                task.arrived_s,
                task.deadline_s,
                task.cancel,
                partial(self._end, task),
            )

    def _end(self, task: InferenceTask, outcome: Outputs | ServingError) -> None:
        found: Outcome
        try:
            if isinstance(outcome, ServingError):
                found = outcome
            else:
                found = {
                    name: to_view(value) if isinstance(value, torch.Tensor) else value
                    for name, value in outcome.items()
                }
        except BaseException as error:  # of a class of the model's own
            found = serving_error(error, self._name)
        finish(task, found)
