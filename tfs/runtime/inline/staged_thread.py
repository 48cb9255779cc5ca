"""The thread of a model in this process that is computed in stages."""

from __future__ import annotations

import logging
import threading
from collections import deque
from time import perf_counter

import torch

from tfs.core.clock import Clock
from tfs.core.errors import ServingError, serving_error
from tfs.core.servable import InferenceTask, Outcome
from tfs.core.system.thread_join import join_by
from tfs.core.system.thread_priority import answer_soon
from tfs.runtime.guest.staged_model import GuestCall, Outputs, StagedModel
from tfs.runtime.guest.torch_tensor import to_torch, to_view
from tfs.runtime.inline.inline_model import InlineModel
from tfs.runtime.interpreter import InterpreterStats
from tfs.runtime.task_outcome import finish, queue_full

log = logging.getLogger(__name__)


class StagedThread:
    """Hands the tasks of one model to its ``StagedModel``, on one thread. Thread-safe.

    A task that comes while the model computes is taken from the queue between two stages,
    without a hand-over to another thread.

    Args:
        name: Names the thread.
        max_queued: Tasks that may wait; one more is answered Unavailable.
        clock: Deadlines go by it.
        guest: The model.

    """

    def __init__(
        self, name: str, max_queued: int, clock: Clock, guest: StagedModel
    ) -> None:
        self._name = name
        self._max_queued = max_queued
        self._clock = clock
        self._guest = guest
        # Guards the fields below; leaf lock. No model and no callback runs under it.
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._queue: deque[tuple[InferenceTask, float]] = deque()
        self._refusal: ServingError | None = None
        # Confined to the thread.
        self._waiting: list[GuestCall] = []
        self._num_calls = 0
        self._num_failed = 0
        self._busy_s = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stats(self) -> InterpreterStats:
        """Returns the counters."""
        return InterpreterStats(
            num_queued=len(self._queue) + len(self._waiting),
            num_calls=self._num_calls,
            num_failed=self._num_failed,
            busy_s=self._busy_s,
        )

    def put(self, model: InlineModel, task: InferenceTask) -> None:
        """Queues a task, or answers it at once. Never blocks, never raises."""
        with self._lock:
            refused = self._refusal
            if refused is None:
                if len(self._queue) + len(self._waiting) < self._max_queued:
                    self._queue.append((task, self._clock.now()))
                    self._wake.notify()
                    return
                refused = queue_full(model.source.id, self._max_queued)
        finish(task, refused)

    def refuse(self, error: ServingError) -> None:
        """Answers all tasks that wait, and takes no more; the first error stays."""
        with self._lock:
            self._refusal = self._refusal or error
            queue, self._queue = self._queue, deque()
            self._wake.notify_all()
        for task, _ in queue:
            finish(task, error)

    def join(self, deadline_s: float | None = None) -> bool:
        """Waits for the running calls, after ``refuse``; returns whether they have ended."""
        if self._thread is threading.current_thread() or not self._thread.ident:
            return True
        has_ended = join_by(self._thread, deadline_s, self._clock)
        if not has_ended:
            log.warning("event=interpreter_hangs interpreter=%s", self._name)
        return has_ended

    # -- on the thread -------------------------------------------------------------------

    def _run(self) -> None:
        answer_soon()
        torch.set_num_threads(self._guest.num_threads)
        waiting = self._waiting
        with torch.inference_mode():
            while True:
                was_idle = not waiting
                with self._lock:
                    while not waiting and not self._queue and self._refusal is None:
                        self._wake.wait()
                    refusal = self._refusal
                if refusal is not None:
                    for call in waiting:
                        call.end(refusal)
                    waiting.clear()
                    return
                self._look()
                begun_s = perf_counter()
                self._guest.serve(waiting, self._look, was_idle=was_idle)
                self._busy_s += perf_counter() - begun_s

    def _look(self) -> None:
        """Takes the tasks that came."""
        if not self._queue:
            return
        with self._lock:
            came, self._queue = self._queue, deque()
        for task, arrived_s in came:
            try:
                inputs = {name: to_torch(view) for name, view in task.inputs.items()}
            except Exception as error:  # there may be no memory to copy them to
                finish(task, serving_error(error, self._name))
                continue

            def end(
                outcome: Outputs | ServingError, task: InferenceTask = task
            ) -> None:
                self._end(task, outcome)

            call = GuestCall(
                task.signature_name,
                inputs,
                task.num_rows,
                arrived_s,
                task.deadline_s,
                task.cancel,
                end,
            )
            self._guest.note_arrival(call)
            self._waiting.append(call)

    def _end(self, task: InferenceTask, outputs: Outputs | ServingError) -> None:
        outcome: Outcome
        try:
            outcome = (
                outputs
                if isinstance(outputs, ServingError)
                else {
                    name: to_view(value) if isinstance(value, torch.Tensor) else value
                    for name, value in outputs.items()
                }
            )
        except BaseException as error:  # of a class of the model's own
            outcome = serving_error(error, self._name)
        self._num_calls += 1
        self._num_failed += isinstance(outcome, ServingError)
        finish(task, outcome)
