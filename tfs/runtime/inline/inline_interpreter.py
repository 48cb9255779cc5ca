"""Backend ``inline``: one thread of this process.

A model whose version asks for concurrency gets that many threads of its own instead.
With a serving loop given it is also backend ``front``: what is submitted on the loop
runs there, without any hand-over, as long as every call is quick.

Right where kernels are big enough to run without the GIL most of the time, on other
platforms, and on GPU, where interpreters share one CUDA context. Nothing is contained:
what crashes a call crashes the process, what hangs holds its thread.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from threading import get_ident
from time import perf_counter
from typing import Final, TypeAlias

import torch

from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import Internal, ServingError, forget_frames, serving_error
from tfs.core.servable import InferenceTask, MakeInputs, Outcome, Tensors
from tfs.core.servable_id import ServableId
from tfs.core.serving_loop import ServingLoop
from tfs.core.thread_priority import answer_soon, run_anywhere
from tfs.runtime.guest.guest_model import (
    GuestModel,
    give_device_memory_back,
    load_guest_model,
)
from tfs.runtime.guest.two_thread_scaling import two_thread_scaling
from tfs.runtime.guest.version_files import VersionFiles
from tfs.runtime.inline.hang_watch import HangWatch, OnHang
from tfs.runtime.inline.request_threads import RequestThreads
from tfs.runtime.inline.thread_use import SlowCalls, ThreadUse, read_thread_use
from tfs.runtime.interpreter import InterpreterStats, LoadMemory
from tfs.runtime.model_source import ModelSource
from tfs.runtime.placement import FRONT_LIMIT_S
from tfs.runtime.task_outcome import (
    closed,
    finish,
    queue_full,
    unloaded,
    why_not_run,
)

log = logging.getLogger(__name__)

_UNLOAD_WAIT_S = 60.0  # for the call that runs when unload is asked for


class InlineModel:
    """A version on an :class:`InlineInterpreter`. Thread-safe."""

    def __init__(
        self,
        interpreter: InlineInterpreter,
        source: ModelSource,
        guest: GuestModel,
        *,
        front: bool,
    ) -> None:
        self._interpreter = interpreter
        self._source = source
        self.num_threads = source.intra_op_threads
        self.import_s: float | None = None
        self.process_changes = ""  # others run here, too
        self.load_memory = LoadMemory()  # others allocate here, too
        self.last_call_s: float | None = None  # there is no way there and back
        self.on_front = front
        self.can_rehearse = False  # whether any thread may call the guest
        self.slow_calls = SlowCalls(FRONT_LIMIT_S)
        # Written by unload, when none of its calls can be running.
        self.guest: GuestModel | None = guest
        self.unloading = False
        # For a model that takes several requests at once; set before it is handed out.
        self.threads: RequestThreads | None = None

    @property
    def source(self) -> ModelSource:
        return self._source

    @property
    def pid(self) -> int:
        """The server's own process."""
        return os.getpid()

    def submit(self, task: InferenceTask) -> None:
        self._interpreter.enqueue(self, task)

    def compute_now(
        self, signature_name: str, make_inputs: MakeInputs
    ) -> Outcome | None:
        """Calls the model if this is the loop and nothing is in the way."""
        if not self.on_front:
            return None
        return self._interpreter.compute_now(self, signature_name, make_inputs)

    def unload(self) -> None:
        self._interpreter.unload(self)

    def two_thread_scaling(
        self, signature_name: str, inputs: Tensors, duration_s: float
    ) -> float | None:
        """Calls the model on threads of its own; see ``MeasurableModel``."""
        guest = self.guest
        if guest is None:
            return None
        return two_thread_scaling(guest, signature_name, inputs, duration_s)

    def rehearse(
        self, signature_name: str, inputs: Tensors, timeout_s: float
    ) -> float | None:
        """Calls the model on the caller's thread, so that no other model's call waits."""
        guest = self.guest
        if guest is None or not self.can_rehearse:
            return None
        torch.set_num_threads(self.num_threads)
        begun_s = time.thread_time()
        with contextlib.suppress(BaseException), torch.inference_mode():
            guest.call(signature_name, inputs)
            return time.thread_time() - begun_s
        return math.inf


class _Unload:
    """A queue item: drop the model here, where none of its calls can be running."""

    def __init__(self, model: InlineModel) -> None:
        self.model = model
        self.done = threading.Event()
        self.is_given_up = False  # the interpreter's lock guards it


_Item: TypeAlias = "tuple[InlineModel, InferenceTask] | _Unload"


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
            gave to others is not the call's (:mod:`tfs.runtime.inline.thread_use`).
        load_model: Makes the model of a version from its files. The thread calls what
            it returns, wherever that computes.
        takes_several: Whether a version that asks for several requests at once gets
            them; else it gets one at a time.
        call_timeout_s: When a call on the thread counts as hung (:class:`HangWatch`):
            what waits behind it, and what comes, is refused then. None waits.
        on_hang: Told of that, see there.
        packs_weights: Whether models may keep a second copy of weights, for kernels
            that want them in another order; see :class:`ModelSource`.

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
        takes_several: bool = True,
        call_timeout_s: float | None = None,
        on_hang: OnHang = lambda _servable, _text: None,
        packs_weights: bool = False,
    ) -> None:
        self._name = name
        self._packs_weights = packs_weights
        self._load_model = load_model or load_guest_model
        self._takes_several = takes_several
        self._max_queued = max_queued
        self._clock = clock or MonotonicClock()
        self._now = self._clock.now
        self._hangs: HangWatch | None = None
        if call_timeout_s is not None:
            self._hangs = HangWatch(name, call_timeout_s, self._now, on_hang)
        self._front_loop = front_loop
        self._on_slow = on_slow
        # Held while a model runs, by the thread or by the loop (which never waits for
        # it); guards the counters. Rank: before _lock. No callback runs under it.
        self._running = threading.Lock()
        # Guards the fields below; leaf lock. No model, callback or garbage collection
        # runs under it.
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._queue: deque[_Item] = deque()
        self._closing = False
        self._models: set[InlineModel] = set()
        self._past = InterpreterStats()  # of unloaded models with threads of their own
        self._num_calls = 0
        self._num_dropped = 0
        self._num_failed = 0
        self._busy_s = 0.0
        self._thread: threading.Thread | None = None
        self._num_threads: dict[int, int] = {}  # by thread
        # The loop's; making one takes 1 us, and entering it for each call takes four.
        self._inference = torch.inference_mode()
        self._infers_for_good = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def num_pending(self) -> int:
        """Tasks that wait for the thread, and the one it runs."""
        return len(self._queue) + self._running.locked()

    @property
    def is_hung(self) -> bool:
        """Whether a call on the thread hangs, so that it takes no others."""
        return self._hangs is not None and self._hangs.error() is not None

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name=self._name, daemon=True
            )
            self._thread.start()

    def load(
        self, source: ModelSource, files: VersionFiles | None = None
    ) -> InlineModel:
        """Loads a version, from ``files`` if they are there already; see the protocol.

        The caller keeps ``files``.
        """
        if self._closing:
            raise closed(self._name)
        files = VersionFiles.stage(source) if files is None else files.duplicate()
        source = replace(source, packs_weights=self._packs_weights)
        begun_s = time.thread_time()
        try:
            guest = self._load_model(source, files)
        finally:
            files.close()
        import_s = time.thread_time() - begun_s
        is_concurrent = self._takes_several and source.concurrency > 1
        front = self._front_loop is not None and not is_concurrent
        model = InlineModel(self, source, guest, front=front)
        model.import_s = import_s
        model.can_rehearse = self._load_model is load_guest_model
        if is_concurrent:
            model.threads = RequestThreads(
                source,
                lambda task: self._answer(model, task.signature_name, task.inputs),
                name=f"{self._name}-{source.id.slashed}",
                max_queued=self._max_queued,
                clock=self._clock,
            )
        with self._lock:
            if not self._closing:
                self._models.add(model)
                return model
        if model.threads is not None:
            model.threads.close(closed(self._name))
        guest.close()
        raise closed(self._name)

    def stats(self) -> InterpreterStats:
        with self._lock:
            stats = InterpreterStats(
                num_models=len(self._models),
                num_queued=len(self._queue),
                num_calls=self._num_calls,
                num_dropped=self._num_dropped,
                num_failed=self._num_failed,
                busy_s=self._busy_s,
            )
            stats = _sum(stats, self._past)
            threads = [each.threads for each in self._models]
        for each in threads:
            if each is not None:
                stats = _sum(stats, each.stats())
        return stats

    def close(self, deadline_s: float | None = None) -> None:
        with self._lock:
            self._closing = True
            waiting = list(self._queue)
            self._queue.clear()
            self._wake.notify()
        for item in waiting:
            if isinstance(item, _Unload):
                item.done.set()
            else:
                finish(item[1], closed(self._name))
        with self._lock:
            models = list(self._models)
        hanging = {
            model
            for model in models
            if model.threads is not None
            and not model.threads.close(closed(self._name), deadline_s)
        }
        if hanging:
            log.warning("event=interpreter_hangs interpreter=%s", self._name)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            timeout_s = None
            if deadline_s is not None:
                timeout_s = max(0.0, deadline_s - self._clock.now())
            thread.join(timeout_s)
            if thread.is_alive():
                log.warning("event=interpreter_hangs interpreter=%s", self._name)
                return  # its call still uses the models
        with self._lock:
            models = list(self._models)
            self._models.clear()
        for model in models:
            if model not in hanging:  # a call that runs still uses its model
                _drop(model)

    # -- for InlineModel -------------------------------------------------------

    def enqueue(self, model: InlineModel, task: InferenceTask) -> None:
        """Queues a task, or answers it at once. Never blocks, never raises."""
        if model.threads is not None:
            model.threads.submit(task)
            return
        if model.on_front:
            outcome = self.compute_now(
                model, task.signature_name, lambda: task.inputs, task
            )
            if outcome is not None:
                finish(task, outcome)
                return
        hung = self._hangs.error() if self._hangs is not None else None
        if hung is not None:
            self._refuse_waiting(hung)
        refused: ServingError
        with self._lock:
            if self._closing:
                refused = closed(self._name)
            elif hung is not None:
                refused = hung
            elif model.unloading:
                refused = unloaded(model.source.id)
            elif len(self._queue) >= self._max_queued:
                refused = queue_full(model.source.id, self._max_queued)
            else:
                self._queue.append((model, task))
                self._wake.notify()
                return
        finish(task, refused)

    def _refuse_waiting(self, error: ServingError) -> None:
        """Answers every task that waits."""
        with self._lock:
            tasks = [item[1] for item in self._queue if not isinstance(item, _Unload)]
            self._queue = deque(i for i in self._queue if isinstance(i, _Unload))
        for task in tasks:
            finish(task, error)

    def unload(self, model: InlineModel) -> None:
        """Drops a model behind the call that runs; blocks until it is gone."""
        if model.threads is not None:
            self._unload_threads(model, model.threads)
            return
        request = _Unload(model)
        with self._lock:
            if model.unloading:
                return
            model.unloading = True
            self._models.discard(model)
            ended = self._closing or self._thread is None
            refused: list[InferenceTask] = []
            if not ended:
                kept: list[_Item] = []
                for item in self._queue:
                    if not isinstance(item, _Unload) and item[0] is model:
                        refused.append(item[1])
                    else:
                        kept.append(item)
                self._queue = deque([request, *kept])
                self._wake.notify()
        for task in refused:
            finish(task, unloaded(model.source.id))
        if not ended and not request.done.wait(0.0 if self.is_hung else _UNLOAD_WAIT_S):
            with self._lock:
                request.is_given_up = not request.done.is_set()
            if request.is_given_up:
                raise _cannot_be_unloaded(model)
        _drop(model)

    def _unload_threads(self, model: InlineModel, threads: RequestThreads) -> None:
        with self._lock:
            if model.unloading:
                return
            model.unloading = True
        deadline_s = self._clock.now() + _UNLOAD_WAIT_S
        ended = threads.close(unloaded(model.source.id), deadline_s)
        with self._lock:
            self._models.discard(model)
            self._past = _sum(self._past, replace(threads.stats(), num_queued=0))
        if not ended:
            raise _cannot_be_unloaded(model)
        _drop(model)

    # -- on the loop -------------------------------------------------------------

    def compute_now(
        self,
        model: InlineModel,
        signature_name: str,
        make_inputs: MakeInputs,
        task: InferenceTask | None = None,
    ) -> Outcome | None:
        """Runs a call here and now, if this is the loop and nothing is in the way.

        Args:
            model: Its front model.
            signature_name: What to call.
            make_inputs: Returns with what.
            task: Asked first whether it must run any more; None: the caller knows.

        """
        loop = self._front_loop
        if loop is None or get_ident() != loop.thread_ident or self._queue:
            return None
        if not self._running.acquire(blocking=False):
            return None
        try:
            if self._closing or model.unloading:
                return None
            if task is not None:
                refused = why_not_run(task, self._now())
                if refused is not None:
                    self._num_dropped += 1
                    return refused
            try:
                inputs = make_inputs()
            except Exception as error:  # there may be no memory to join them in
                return serving_error(error, model.source.id.slashed)
            if self._infers_for_good:
                outcome, call_s = self._call_on_loop(model, signature_name, inputs)
            else:
                with self._inference:
                    outcome, call_s = self._call_on_loop(model, signature_name, inputs)
                if loop.owns_thread:
                    _infer_for_good()
                    self._infers_for_good = True
        finally:
            self._running.release()
        if call_s > FRONT_LIMIT_S and model.on_front:
            model.on_front = False
            log.warning(
                "event=left_front servable=%s call_ms=%.1f limit_ms=%.0f",
                model.source.id.slashed,
                call_s * 1e3,
                FRONT_LIMIT_S * 1e3,
            )
            if self._on_slow is not None:
                self._on_slow(model.source.id, call_s)
        return outcome

    def _call_on_loop(
        self, model: InlineModel, signature_name: str, inputs: Tensors
    ) -> tuple[Outcome, float]:
        """Returns the outcome, and the seconds to hold against the call."""
        before = read_thread_use()
        outcome, call_s = self._call(model, signature_name, inputs)
        if call_s > FRONT_LIMIT_S:
            after = read_thread_use()
            call_s = model.slow_calls.own_s(
                self._num_calls, call_s, ThreadUse.of(before), ThreadUse.of(after)
            )
        return outcome, call_s

    # -- on the thread -----------------------------------------------------------

    def _run(self) -> None:
        run_anywhere()
        answer_soon()
        with torch.inference_mode():
            while True:
                with self._lock:
                    while not self._queue and not self._closing:
                        self._wake.wait()
                    if self._closing and not self._queue:
                        return
                    item = self._queue.popleft()
                with self._running:
                    if isinstance(item, _Unload):
                        if self._hangs is not None:
                            self._hangs.forget(item.model.source.id)
                        with self._lock:
                            item.done.set()
                            is_given_up = item.is_given_up
                        if is_given_up:  # whoever unloaded it could not wait
                            _drop(item.model)
                        outcome = None
                    else:
                        outcome = self._execute_watched(*item)
                if outcome is not None and not isinstance(item, _Unload):
                    finish(item[1], outcome)
                # A waiting thread must not keep a model alive that was unloaded, nor
                # the tensors of a request.
                del item, outcome

    def _execute_watched(self, model: InlineModel, task: InferenceTask) -> Outcome:
        hangs = self._hangs
        if hangs is None:
            return self._execute(model, task)
        hangs.begin(model.source.id)
        try:
            return self._execute(model, task)
        finally:
            hangs.end()

    # -- where a model runs, under _running ------------------------------------------

    def _execute(self, model: InlineModel, task: InferenceTask) -> Outcome:
        refused = why_not_run(task, self._now())
        if refused is not None:
            self._num_dropped += 1
            return refused
        return self._call(model, task.signature_name, task.inputs)[0]

    def _call(
        self, model: InlineModel, signature_name: str, inputs: Tensors
    ) -> tuple[Outcome, float]:
        """Returns the outcome, and the seconds the call took."""
        begun_s = perf_counter()
        wanted = model.num_threads
        thread = get_ident()
        if wanted != self._num_threads.get(thread):
            # The number belongs to this thread (OpenMP's and MKL's are per thread);
            # it changes only where models with different settings share one.
            torch.set_num_threads(wanted)
            self._num_threads[thread] = wanted
        outcome = self._answer(model, signature_name, inputs)
        call_s = perf_counter() - begun_s
        self._busy_s += call_s
        self._num_calls += 1
        if isinstance(outcome, ServingError):
            self._num_failed += 1
        return outcome, call_s

    def _answer(
        self, model: InlineModel, signature_name: str, inputs: Tensors
    ) -> Outcome:
        guest = model.guest
        if guest is None:
            return unloaded(model.source.id)
        try:
            return guest.call(signature_name, inputs)
        except BaseException as error:  # what a model returns may raise it when read
            fault = serving_error(error, model.source.id.slashed)
            # They hold the model's tensors, and our callers' frames the fault.
            forget_frames(fault)
            return fault


_of_thread: Final = threading.local()


def _infer_for_good() -> None:
    """Puts the calling thread into inference mode until it ends."""
    if not hasattr(_of_thread, "inference"):
        _of_thread.inference = torch.inference_mode()
        _of_thread.inference.__enter__()


def _cannot_be_unloaded(model: InlineModel) -> Internal:
    return Internal(
        f"{model.source.id.slashed} cannot be unloaded: a call has been running in its "
        "interpreter for too long; its memory is free when that ends"
    )


def _sum(first: InterpreterStats, second: InterpreterStats) -> InterpreterStats:
    return replace(
        first,
        num_queued=first.num_queued + second.num_queued,
        num_calls=first.num_calls + second.num_calls,
        num_dropped=first.num_dropped + second.num_dropped,
        num_failed=first.num_failed + second.num_failed,
        busy_s=first.busy_s + second.busy_s,
    )


def _drop(model: InlineModel) -> None:
    guest, model.guest = model.guest, None
    if guest is None:
        return
    # Modules and importers of a package hold each other: their memory goes when whoever
    # unloads collects, once for all that it unloads together (managers/memory.py).
    guest.close()
    if model.source.device != "cpu":
        # A device's is short, and nobody else returns what torch keeps of it: the next
        # version may need it.
        del guest
        gc.collect()
        give_device_memory_back()
