"""Threads that run several requests of one model at the same time.

They are for models that batch a part of themselves (``tfs.runtime.batched``), because a
part can join only requests that are under way together. All other models are called by
the one thread of their interpreter.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

import torch

from tfs.core.clock import Clock
from tfs.core.errors import ServingError
from tfs.core.request_scope import request_scope
from tfs.core.servable import InferenceTask, Outcome
from tfs.core.thread_join import join_by
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.interpreter import InterpreterStats
from tfs.runtime.task_outcome import finish, queue_full


class RequestThreads:
    """Runs up to ``source.concurrency`` tasks of one model at once. Thread-safe.

    Tasks begin in the order of their submission. A batched part that a task calls
    knows the task's deadline and whether it was cancelled.

    Args:
        source: The source of the model, for its number of threads and its name.
        call: Computes a task; runs on these threads, several at a time; returns errors
            instead of raising them.
        name: Starts the names of the threads.
        max_queued: Most tasks that may wait; one more is answered Unavailable.
        clock: The clock of deadlines.

    """

    def __init__(
        self,
        source: ModelSource,
        call: Callable[[InferenceTask], Outcome],
        *,
        name: str,
        max_queued: int,
        clock: Clock,
    ) -> None:
        self._source = source
        self._call = call
        self._max_queued = max_queued
        self._clock = clock
        # Guards the fields below; leaf lock. No model and no callback runs under it.
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._queue: deque[InferenceTask] = deque()
        self._refusal: ServingError | None = None  # once closed
        self._num_calls = 0
        self._num_dropped = 0
        self._num_failed = 0
        self._busy_s = 0.0
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}-{index}", daemon=True)
            for index in range(source.concurrency)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, task: InferenceTask) -> None:
        """Queues a task, or answers it at once. Never blocks, never raises."""
        with self._lock:
            refused = self._refusal
            if refused is None:
                if len(self._queue) < self._max_queued:
                    self._queue.append(task)
                    self._wake.notify()
                    return
                refused = queue_full(self._source.id, self._max_queued)
        finish(task, refused)

    def close(self, refusal: ServingError, deadline_s: float | None = None) -> bool:
        """Answers all waiting and new tasks with ``refusal``, and waits for running ones.

        Args:
            refusal: Why nothing is computed any more; the first one that is given
                stays.
            deadline_s: Monotonic, by the given clock; None waits as long as it takes.

        Returns:
            Whether every thread has ended; if not, calls still use the model.

        """
        with self._lock:
            if self._refusal is None:
                self._refusal = refusal
            waiting = list(self._queue)
            self._queue.clear()
            self._wake.notify_all()
        for task in waiting:
            finish(task, refusal)
        this = threading.current_thread()
        others = [thread for thread in self._threads if thread is not this]
        return all(join_by(each, deadline_s, self._clock) for each in others)

    def stats(self) -> InterpreterStats:
        """Returns the counters of this model; ``busy_s`` adds up all threads."""
        with self._lock:
            return InterpreterStats(
                num_queued=len(self._queue),
                num_calls=self._num_calls,
                num_dropped=self._num_dropped,
                num_failed=self._num_failed,
                busy_s=self._busy_s,
            )

    # -- on the threads ----------------------------------------------------------

    def _run(self) -> None:
        # The number belongs to each thread (OpenMP's and MKL's are per thread).
        torch.set_num_threads(self._source.intra_op_threads)
        with torch.inference_mode():
            while True:
                with self._lock:
                    while not self._queue and self._refusal is None:
                        self._wake.wait()
                    if not self._queue:
                        return
                    task = self._queue.popleft()
                finish(task, self._outcome(task))
                # A waiting thread must not keep the tensors of a request.
                del task

    def _outcome(self, task: InferenceTask) -> Outcome:
        refused = task.begin(self._clock.now(), self._source.id.slashed)
        if refused is not None:
            with self._lock:
                self._num_dropped += 1
            return refused
        begun_s = time.perf_counter()
        with request_scope(task.deadline_s, task.cancel):
            outcome = self._call(task)
        busy_s = time.perf_counter() - begun_s
        with self._lock:
            self._busy_s += busy_s
            self._num_calls += 1
            self._num_failed += isinstance(outcome, ServingError)
        return outcome
