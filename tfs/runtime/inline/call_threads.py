"""Threads of this process that run the calls of models, with one queue."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TypeAlias

import torch

from tfs.core.batch.batch_task import request_scope
from tfs.core.clock import Clock, join_by
from tfs.core.errors import ServingError
from tfs.core.servable import InferenceTask, Outcome
from tfs.core.system.thread_priority import answer_soon
from tfs.runtime.guest.current_span import current_span
from tfs.runtime.inline.inline_model import InlineModel
from tfs.runtime.interpreter import finish, queue_full, unloaded

log = logging.getLogger(__name__)

UNLOAD_WAIT_S = 60.0  # for the call that runs when unload is asked for


class _Unload:
    """A queue item: drop the model here, where none of its calls can be running."""

    def __init__(self, model: InlineModel) -> None:
        self.model = model
        self.done = threading.Event()
        self.is_given_up = False  # the threads' lock guards it


_Item: TypeAlias = "tuple[InlineModel, InferenceTask] | _Unload"


class CallThreads:
    """Runs tasks in the order they came, as many at a time as it has threads. Thread-safe.

    One thread runs the calls of all models that take one at a time. A model that batches
    a part of itself (``tfs.runtime.batched``) has several threads of its own, because a
    part can join only requests that are under way together; the part knows a task's
    deadline, and whether it was cancelled.

    Args:
        name: Names the threads.
        max_queued: Tasks that may wait; one more is answered Unavailable.
        clock: Deadlines go by it.
        num_threads: How many threads.

    Attributes:
        queue: The tasks that wait; read-only.
        refusal: Why no more tasks are taken; None while they are. Read-only.
        running: If there is one thread, held while a model runs, by that thread or by
            the loop, which never waits for it. Rank: before ``_lock``. No callback runs
            under it.
        num_calls: The calls that ran, if there is one thread; ``running`` guards it.

    """

    def __init__(
        self,
        name: str,
        max_queued: int,
        clock: Clock,
        num_threads: int = 1,
    ) -> None:
        self._name = name
        self._max_queued = max_queued
        self._clock = clock
        self._overlap = num_threads > 1
        self.running = threading.Lock()
        # Guards the fields below; leaf lock. No model, callback or garbage collection
        # runs under it.
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self.queue: deque[_Item] = deque()
        self.refusal: ServingError | None = None
        self._threads = [
            threading.Thread(
                target=self._run,
                name=f"{name}-{index}" if self._overlap else name,
                daemon=True,
            )
            for index in range(num_threads)
        ]
        self._starting = threading.Lock()  # rank: before all others
        self._is_started = False
        self.num_calls = 0

    def start(self) -> None:
        """Starts the threads, unless they run. Thread-safe.

        Raises:
            RuntimeError: The system has no more threads.

        """
        with self._starting:
            for thread in self._threads:
                if thread.ident is None:
                    thread.start()
            self._is_started = True

    def put(self, model: InlineModel, task: InferenceTask) -> None:
        """Queues a task, or answers it at once. Never blocks, never raises."""
        refused: ServingError
        with self._lock:
            if self.refusal is not None:
                refused = self.refusal
            elif model.unloading:
                refused = unloaded(model.source.id)
            elif len(self.queue) >= self._max_queued:
                refused = queue_full(model.source.id, self._max_queued)
            else:
                self.queue.append((model, task))
                self._wake.notify()
                return
        finish(task, refused)

    def _refuse_waiting(
        self, error: ServingError, model: InlineModel | None = None
    ) -> None:
        refused: list[InferenceTask] = []
        with self._lock:
            kept: deque[_Item] = deque()
            for item in self.queue:
                if isinstance(item, _Unload) or model not in (None, item[0]):
                    kept.append(item)
                else:
                    refused.append(item[1])
            self.queue = kept
        for task in refused:
            finish(task, error)

    def run_out(self, model: InlineModel) -> bool:
        """Refuses the tasks that wait for a model, and waits for its running call.

        Blocks for at most :data:`UNLOAD_WAIT_S`. The model is ``unloading``, so that no
        more tasks are put. For one thread.

        Returns:
            Whether the caller may drop the model; if not, the thread does so as soon as
            it can.

        """
        request = _Unload(model)
        with self._lock:
            if self.refusal is not None or not self._is_started:
                return True
            self.queue.appendleft(request)
            self._wake.notify()
        self._refuse_waiting(unloaded(model.source.id), model)
        if request.done.wait(UNLOAD_WAIT_S):
            return True
        with self._lock:
            request.is_given_up = not request.done.is_set()
            return not request.is_given_up

    def refuse(self, error: ServingError) -> None:
        """Answers all tasks that wait, and takes no more; the first error stays."""
        with self._lock:
            self.refusal = self.refusal or error
            waiting, self.queue = self.queue, deque()
            self._wake.notify_all()
        for item in waiting:
            if isinstance(item, _Unload):
                item.done.set()
            else:
                finish(item[1], error)

    def join(self, deadline_s: float | None = None) -> bool:
        """Waits for the running calls, after ``refuse``.

        Args:
            deadline_s: Monotonic, by the given clock; None waits as long as it takes.

        Returns:
            Whether the threads have ended; if not, calls still use the models.

        """
        this = threading.current_thread()
        others = [each for each in self._threads if each is not this]
        has_ended = not self._is_started or all(
            join_by(each, deadline_s, self._clock) for each in others
        )
        if not has_ended:
            log.warning("event=interpreter_hangs interpreter=%s", self._name)
        return has_ended

    # -- on the threads ----------------------------------------------------------

    def _run(self) -> None:
        answer_soon()
        with torch.inference_mode():
            while True:
                with self._lock:
                    while not self.queue and self.refusal is None:
                        self._wake.wait()
                    if not self.queue:
                        return
                    item = self.queue.popleft()
                outcome: Outcome | None = None
                if isinstance(item, _Unload):
                    with self.running:
                        self._let_go(item)
                elif self._overlap:
                    with request_scope(item[1].deadline_s, item[1].cancel):
                        outcome = self._outcome(*item)
                else:
                    with self.running:
                        outcome = self._outcome(*item)
                if outcome is not None and not isinstance(item, _Unload):
                    finish(item[1], outcome)
                # A waiting thread must not keep a model alive that was unloaded, nor
                # the tensors of a request.
                del item, outcome

    def _let_go(self, request: _Unload) -> None:
        with self._lock:
            request.done.set()
            is_given_up = request.is_given_up
        if is_given_up:  # whoever unloaded it could not wait
            request.model.drop()

    def _outcome(self, model: InlineModel, task: InferenceTask) -> Outcome:
        refused = task.begin(self._clock.now(), model.label)
        if refused is not None:
            return refused
        if task.trace is None:
            outcome, call_s = model.call(task.signature_name, task.inputs)
        else:
            with current_span(task.trace.context):
                outcome, call_s = model.call(task.signature_name, task.inputs)
        if not self._overlap:
            model.last_call_s = call_s
            self.num_calls += 1
        return outcome
