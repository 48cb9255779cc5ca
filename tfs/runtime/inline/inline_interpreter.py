"""Backend ``inline``: one thread of this process.

A model whose version asks for concurrency gets that many threads of its own instead.
With a serving loop it is also backend ``front``: tasks that are submitted on the loop
run there, without any hand-over, as long as every call is quick.

It is the right backend for kernels that are big enough to run without the GIL most of
the time, and for GPUs, where interpreters share one CUDA context. Nothing is contained: a
call that crashes ends the process, and a call that hangs holds its thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from torch.jit import _state

from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import (
    Internal,
    ResourceExhausted,
    ServingError,
)
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.servable import InferenceTask
from tfs.core.servable_id import ServableId
from tfs.runtime.guest.current_span import current_span
from tfs.runtime.guest.guest_model import GuestModel, load_guest_model
from tfs.runtime.guest.memory_files import VersionFiles
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.staged_model import StagedModel
from tfs.runtime.inline.call_threads import UNLOAD_WAIT_S, CallThreads
from tfs.runtime.inline.front_calls import FrontCalls
from tfs.runtime.inline.inline_model import InlineModel
from tfs.runtime.inline.staged_thread import StagedThread
from tfs.runtime.interpreter import closed, finish, unloaded


class InlineInterpreter:
    """Runs models on one thread of its own. Thread-safe.

    Models that take several requests at once run on their own threads beside it.

    Args:
        name: Names the thread.
        max_queued: Tasks that may wait; one more is answered Unavailable.
        clock: Deadlines go by it.
        front_loop: Calls submitted on this loop run on it.
        on_slow: Called on the loop when a call on it took over
            :data:`~tfs.runtime.placement.FRONT_LIMIT_S`, with the version and the
            seconds; from then on the model runs on the thread. Time that the kernel
            gave to other threads is not counted (:mod:`tfs.runtime.inline.front_calls`).
        load_model: Makes the model of a version from its files, for a model that
            computes elsewhere. Such models get one request at a time, whatever they
            ask for.

    """

    def __init__(
        self,
        name: str = "inline-0",
        *,
        max_queued: int = 256,
        clock: Clock | None = None,
        front_loop: ServingLoop | None = None,
        on_slow: Callable[[ServableId, float], None] | None = None,
        load_model: Callable[[ModelSource, VersionFiles], GuestModel] | None = None,
    ) -> None:
        self._name = name
        self._load_model = load_model or load_guest_model
        self._takes_several = load_model is None
        self._max_queued = max_queued
        self._clock = clock or MonotonicClock()
        self._thread = CallThreads(name, max_queued, self._clock)
        self._front_loop = front_loop
        self._on_slow = on_slow
        # Guards the fields below; leaf lock. No model and no callback runs under it.
        self._lock = threading.Lock()
        self._is_closing = False
        self._models: set[InlineModel] = set()
        self._own_threads: dict[InlineModel, CallThreads | StagedThread] = {}

    @property
    def num_pending(self) -> int:
        """Tasks that wait for the thread, and the one it runs."""
        return len(self._thread.queue) + self._thread.running.locked()

    def load(
        self, source: ModelSource, files: VersionFiles | None = None
    ) -> InlineModel:
        """Loads a version, from ``files`` if they are there already; see the protocol.

        The caller keeps ``files``. If there are no more threads: ResourceExhausted.
        """
        if self._is_closing:
            raise closed(self._name)
        files = VersionFiles.stage(source) if files is None else files.duplicate()
        begun_s = time.thread_time()
        try:
            guest = self._load_model(source, files)
        finally:
            files.close()
        is_concurrent = self._takes_several and source.concurrency > 1
        model = InlineModel(
            source,
            guest,
            self._enqueue,
            self._unload,
            import_s=time.thread_time() - begun_s,
        )
        loop = self._front_loop
        if loop is not None and not is_concurrent:
            now, on_slow = self._clock.now, self._on_slow
            front = FrontCalls(model, loop, self._thread, now, on_slow)
            model.front = front.compute_now
        threads = self._own_threads_of(source, guest) if is_concurrent else self._thread
        refusal: ServingError
        try:
            self._thread.start()
            threads.start()
        except RuntimeError as error:
            refusal = ResourceExhausted(
                f"{source.id.slashed} gets no thread in interpreter {self._name}: "
                f"{error}; allow this process more threads"
            )
        else:
            with self._lock:
                if not self._is_closing:
                    self._models.add(model)
                    if threads is not self._thread:
                        self._own_threads[model] = threads
                    return model
            refusal = closed(self._name)
        if threads is not self._thread:
            threads.refuse(refusal)  # those that have started end
        guest.close()
        raise refusal

    def _own_threads_of(self, source: ModelSource, guest: GuestModel) -> CallThreads:
        name = f"{self._name}-{source.id.slashed}"
        if isinstance(guest, StagedModel):
            return StagedThread(name, self._max_queued, self._clock, guest)
        return CallThreads(name, self._max_queued, self._clock, source.concurrency)

    @property
    def num_models(self) -> int:
        return len(self._models)

    def close(self, deadline_s: float | None = None) -> None:
        with self._lock:
            self._is_closing = True
            own = dict(self._own_threads)
        for each in (self._thread, *own.values()):
            each.refuse(closed(self._name))
        hanging = {m for m, threads in own.items() if not threads.join(deadline_s)}
        if not self._thread.join(deadline_s):
            return
        with self._lock:
            models = list(self._models)
            self._models.clear()
        for model in models:
            if model not in hanging:  # a call that runs still uses its model
                model.drop()

    # -- for InlineModel -------------------------------------------------------

    def _enqueue(self, model: InlineModel, task: InferenceTask) -> None:
        """Runs a task on the loop, or lets a thread run it. Never blocks, never raises."""
        threads = self._own_threads.get(model)
        if threads is not None:
            threads.put(model, task)
            return
        front = model.front
        if front is not None:
            trace = task.trace
            if trace is None:
                outcome = front(task.signature_name, lambda: task.inputs, task)
            else:
                trace.compute(model.source.id.slashed, self._clock.now())
                with current_span(trace.context):
                    outcome = front(task.signature_name, lambda: task.inputs, task)
            if outcome is not None:
                finish(task, outcome)
                return
        self._thread.put(model, task)

    def _unload(self, model: InlineModel) -> None:
        """Drops a model after the call that is running; blocks until it is gone.

        Raises:
            Internal: A call does not end. The model takes no more calls, and its memory
                is freed when that call ends.

        """
        with self._lock:
            if model.unloading:
                return
            model.unloading = True
            threads = self._own_threads.get(model)
            if threads is None:
                self._models.discard(model)
        if threads is not None:
            has_ended = self._close_threads(model, threads)
        else:
            has_ended = self._thread.run_out(model)
        if not has_ended:
            raise Internal(
                f"{model.source.id.slashed} cannot be unloaded: a call has been running "
                "in its interpreter for too long; its memory is free when that ends"
            )
        model.drop()

    def _close_threads(
        self, model: InlineModel, threads: CallThreads | StagedThread
    ) -> bool:
        threads.refuse(unloaded(model.source.id))
        has_ended = threads.join(self._clock.now() + UNLOAD_WAIT_S)
        with self._lock:
            self._models.discard(model)
            self._own_threads.pop(model, None)
        return has_ended


def run_script_functions_as_python() -> None:
    """Has what models decorate with ``torch.jit.script`` run as Python in this process.

    torch frees no function that it has compiled, so each version would leave its own here.
    In workers, which end with their version, they are compiled.
    """
    # Private: without it they are compiled here again, and stay.
    vars(_state).get("disable", lambda: None)()
