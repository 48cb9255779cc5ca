"""The thread of an interpreter in this process: its queue, and the tasks that it runs."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TypeAlias

import torch

from tfs.core.clock import Clock
from tfs.core.errors import ServingError
from tfs.core.servable import InferenceTask, Outcome
from tfs.core.thread_join import join_by
from tfs.core.thread_priority import answer_soon
from tfs.runtime.inline.hang_watch import HangWatch
from tfs.runtime.inline.inline_model import InlineModel
from tfs.runtime.inline.model_calls import ModelCalls
from tfs.runtime.task_outcome import closed, finish, queue_full, unloaded

log = logging.getLogger(__name__)

UNLOAD_WAIT_S = 60.0  # for the call that runs when unload is asked for


class _Unload:
    """A queue item: drop the model here, where none of its calls can be running."""

    def __init__(self, model: InlineModel) -> None:
        self.model = model
        self.done = threading.Event()
        self.is_given_up = False  # the thread's lock guards it


_Item: TypeAlias = "tuple[InlineModel, InferenceTask] | _Unload"


class CallThread:
    """Runs tasks one at a time, in the order they came. Thread-safe.

    Args:
        name: Names the thread.
        calls: Runs and counts them.
        max_queued: Tasks that may wait; one more is answered Unavailable.
        clock: Deadlines go by it.
        hangs: Watches the calls, if given: tasks that wait behind one that hangs, and
            new ones, are refused.

    Attributes:
        queue: The tasks that wait; read-only.
        is_closing: Whether ``refuse`` was called; read-only.

    """

    def __init__(
        self,
        name: str,
        calls: ModelCalls,
        max_queued: int,
        clock: Clock,
        hangs: HangWatch | None,
    ) -> None:
        self._name = name
        self._calls = calls
        self._max_queued = max_queued
        self._clock = clock
        self._hangs = hangs
        # Guards the fields below; leaf lock. No model, callback or garbage collection
        # runs under it.
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self.queue: deque[_Item] = deque()
        self.is_closing = False
        self._thread: threading.Thread | None = None

    @property
    def is_hung(self) -> bool:
        """Whether a call hangs, so that no others are taken."""
        return self._hangs is not None and self._hangs.error() is not None

    def start(self) -> None:
        """Starts the thread, unless it runs."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name=self._name, daemon=True
            )
            self._thread.start()

    def put(self, model: InlineModel, task: InferenceTask) -> None:
        """Queues a task, or answers it at once. Never blocks, never raises."""
        hung = self._hangs.error() if self._hangs is not None else None
        if hung is not None:
            self._refuse_waiting(hung)
        refused: ServingError
        with self._lock:
            if self.is_closing:
                refused = closed(self._name)
            elif hung is not None:
                refused = hung
            elif model.unloading:
                refused = unloaded(model.source.id)
            elif len(self.queue) >= self._max_queued:
                refused = queue_full(model.source.id, self._max_queued)
            else:
                self.queue.append((model, task))
                self._wake.notify()
                return
        finish(task, refused)

    def _refuse_waiting(self, error: ServingError) -> None:
        """Answers every task that waits."""
        with self._lock:
            tasks = [item[1] for item in self.queue if not isinstance(item, _Unload)]
            self.queue = deque(i for i in self.queue if isinstance(i, _Unload))
        for task in tasks:
            finish(task, error)

    def run_out(self, model: InlineModel) -> bool:
        """Refuses the tasks that wait for a model, and waits for its running call.

        Blocks for at most :data:`UNLOAD_WAIT_S`, and not at all if a call hangs. The
        model is ``unloading``, so that no more tasks are put.

        Returns:
            Whether the caller may drop the model; if not, the thread does so as soon as
            it can.

        """
        request = _Unload(model)
        refused: list[InferenceTask] = []
        with self._lock:
            if self.is_closing or self._thread is None:
                return True
            kept: list[_Item] = []
            for item in self.queue:
                if not isinstance(item, _Unload) and item[0] is model:
                    refused.append(item[1])
                else:
                    kept.append(item)
            self.queue = deque([request, *kept])
            self._wake.notify()
        for task in refused:
            finish(task, unloaded(model.source.id))
        if request.done.wait(0.0 if self.is_hung else UNLOAD_WAIT_S):
            return True
        with self._lock:
            request.is_given_up = not request.done.is_set()
            return not request.is_given_up

    def refuse(self) -> None:
        """Answers all tasks that wait, and takes no more: the interpreter ends."""
        with self._lock:
            self.is_closing = True
            waiting = list(self.queue)
            self.queue.clear()
            self._wake.notify()
        for item in waiting:
            if isinstance(item, _Unload):
                item.done.set()
            else:
                finish(item[1], closed(self._name))

    def join(self, deadline_s: float | None = None) -> bool:
        """Waits for the running call, after ``refuse``.

        Args:
            deadline_s: Monotonic, by the given clock; None waits as long as it takes.

        Returns:
            Whether the thread has ended; if not, its call still uses the models.

        """
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        if not join_by(thread, deadline_s, self._clock):
            log.warning("event=interpreter_hangs interpreter=%s", self._name)
            return False
        return True

    # -- on the thread -----------------------------------------------------------

    def _run(self) -> None:
        answer_soon()
        with torch.inference_mode():
            while True:
                with self._lock:
                    while not self.queue and not self.is_closing:
                        self._wake.wait()
                    if self.is_closing and not self.queue:
                        return
                    item = self.queue.popleft()
                with self._calls.running:
                    if isinstance(item, _Unload):
                        self._let_go(item)
                        outcome = None
                    else:
                        outcome = self._execute(*item)
                if outcome is not None and not isinstance(item, _Unload):
                    finish(item[1], outcome)
                # A waiting thread must not keep a model alive that was unloaded, nor
                # the tensors of a request.
                del item, outcome

    def _let_go(self, request: _Unload) -> None:
        if self._hangs is not None:
            self._hangs.forget(request.model.source.id)
        with self._lock:
            request.done.set()
            is_given_up = request.is_given_up
        if is_given_up:  # whoever unloaded it could not wait
            request.model.drop()

    def _execute(self, model: InlineModel, task: InferenceTask) -> Outcome:
        hangs = self._hangs
        if hangs is None:
            return self._outcome(model, task)
        hangs.begin(model.source.id)
        try:
            return self._outcome(model, task)
        finally:
            hangs.end()

    def _outcome(self, model: InlineModel, task: InferenceTask) -> Outcome:
        refused = task.begin(self._clock.now(), model.source.id.slashed)
        if refused is not None:
            self._calls.num_dropped += 1
            return refused
        return self._calls.call(model, task.signature_name, task.inputs)[0]
