"""Who runs calls in this process: threads with one queue, and the loop before it queues any."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import get_ident
from time import perf_counter
from typing import Final, TypeAlias

import torch

from tfs.core.batch.batch_task import request_scope
from tfs.core.clock import Clock, join_by
from tfs.core.errors import ServingError, forget_frames, serving_error
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.servable import InferenceTask, MakeInputs, Outcome, Tensors
from tfs.core.servable_id import ServableId
from tfs.core.system.thread_priority import answer_soon
from tfs.runtime.guest.current_span import current_span
from tfs.runtime.guest.own_process import FORKS
from tfs.runtime.guest.staged_model import Outputs, StagedModel
from tfs.runtime.guest.torch_tensor import to_torch, to_view
from tfs.runtime.inline.inline_model import InlineModel, ThreadUse, read_thread_use
from tfs.runtime.interpreter import finish, queue_full, unloaded
from tfs.runtime.placement import FRONT_LIMIT_S

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
        self._num_torch_threads: dict[int, int] = {}  # by thread

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

    def call(
        self, model: InlineModel, signature_name: str, inputs: Tensors
    ) -> tuple[Outcome, float]:
        """Calls a model on this thread; returns an error instead of raising it.

        Returns the outcome, and the seconds the call took. The caller holds ``running``.
        """
        guest = model.guest
        if guest is None:
            return unloaded(model.source.id), 0.0
        begun_s = perf_counter()
        wanted = model.num_threads
        thread = get_ident()
        if wanted != self._num_torch_threads.get(thread):
            # The number belongs to this thread (OpenMP's and MKL's are per thread);
            # it changes only where models with different settings share one.
            torch.set_num_threads(wanted)
            self._num_torch_threads[thread] = wanted
        outcome: Outcome
        depth = FORKS.depth
        try:
            outcome = guest.call(signature_name, inputs)
        except BaseException as error:  # what a model returns may raise it when read
            outcome = serving_error(error, model.label)
            # The error's frames hold the model's tensors, and our callers' frames hold
            # the error.
            forget_frames(outcome)
        finally:
            if FORKS.depth != depth:  # a call of end_copy would take longer
                FORKS.end_copy(depth)
        call_s = perf_counter() - begun_s
        if not self._overlap:
            model.last_call_s = call_s
            self.num_calls += 1
        return outcome, call_s

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
        if refused is None and task.trace is not None:
            with current_span(task.trace.context):
                return self.call(model, task.signature_name, task.inputs)[0]
        if refused is None:
            return self.call(model, task.signature_name, task.inputs)[0]
        return refused


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
                refused = task.begin(self._now(), model.label)
                if refused is not None:
                    return refused
            try:
                inputs = make_inputs()
            except Exception as error:  # there may be no memory to join them in
                return serving_error(error, model.label)
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
