"""Backend ``front``: the thread that submits, which in the server is the serving loop.

For calls shorter than any hand-over: no queue, no wake-up, no second thread that
fights for the GIL. The price is that a call delays everything else on the loop, so
only models that were measured, in a process interpreter first, come here (placement).
Nothing is contained.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
import time

import torch

from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import ServingError, serving_error
from tfs.core.servable import InferenceTask, Outcome
from tfs.runtime.guest.guest_model import GuestModel, VersionFiles, load_guest_model
from tfs.runtime.interpreter import InterpreterStats
from tfs.runtime.model_source import ModelSource
from tfs.runtime.task_outcome import closed, finish, unloaded, why_not_run


class FrontModel:
    """A version on a :class:`FrontInterpreter`. Thread-safe."""

    def __init__(
        self, interpreter: FrontInterpreter, source: ModelSource, guest: GuestModel
    ) -> None:
        self._interpreter = interpreter
        self._source = source
        # Held during a call and while the model is dropped. Leaf: model code runs
        # under it, nothing of ours does; calls come from one thread, so only
        # unload ever waits for it.
        self._calling = threading.Lock()
        self._guest: GuestModel | None = guest
        self.longest_call_s = 0.0

    @property
    def source(self) -> ModelSource:
        return self._source

    def submit(self, task: InferenceTask) -> None:
        finish(task, self._outcome(task))

    def unload(self) -> None:
        with self._calling:
            guest, self._guest = self._guest, None
        if guest is None:
            return
        self._interpreter.forget(self)
        guest.close()
        del guest
        # Modules and importers of a package hold each other.
        gc.collect()
        with contextlib.suppress(AttributeError, OSError):  # glibc only
            ctypes.CDLL(None).malloc_trim(0)

    def _outcome(self, task: InferenceTask) -> Outcome:
        interpreter = self._interpreter
        begun_s = time.perf_counter()
        with self._calling:
            guest = self._guest
            if guest is None:
                return unloaded(self._source.id)
            refused = why_not_run(task, interpreter.clock.now())
            if refused is not None:
                interpreter.num_dropped += 1
                return refused
            interpreter.use_threads(self._source.intra_op_threads)
            outcome: Outcome
            try:
                with interpreter.inference_mode:
                    outcome = guest.call(task.signature_name, task.inputs)
            except Exception as error:
                outcome = serving_error(error, self._source.id.slashed)
        call_s = time.perf_counter() - begun_s
        interpreter.busy_s += call_s
        interpreter.num_calls += 1
        if call_s > self.longest_call_s:
            self.longest_call_s = call_s
        if isinstance(outcome, ServingError):
            interpreter.num_failed += 1
        return outcome


class FrontInterpreter:
    """Runs models on whatever thread submits, which must always be the same one.

    ``load``, ``unload`` and ``close`` are thread-safe.

    Attributes:
        clock: Deadlines go by it.
        num_calls, num_dropped, num_failed, busy_s: As in ``InterpreterStats``;
            written by the submitting thread only.

    """

    def __init__(self, name: str = "front", *, clock: Clock | None = None) -> None:
        self._name = name
        self.clock = clock or MonotonicClock()
        self.num_calls = 0
        self.num_dropped = 0
        self.num_failed = 0
        self.busy_s = 0.0
        # Guards _models and _closing; leaf.
        self._lock = threading.Lock()
        self._models: set[FrontModel] = set()
        self._closing = False
        # Entered for every call; making one each time would cost as much again.
        self.inference_mode = torch.inference_mode()
        self._num_threads = 0

    @property
    def name(self) -> str:
        return self._name

    def start(self) -> None:
        """Does nothing: there is no thread of its own."""

    def load(self, source: ModelSource) -> FrontModel:
        if self._closing:
            raise closed(self._name)
        files = VersionFiles.stage(source)
        try:
            guest = load_guest_model(source, files)
        except BaseException:
            gc.collect()
            raise
        finally:
            files.close()
        model = FrontModel(self, source, guest)
        with self._lock:
            if not self._closing:
                self._models.add(model)
                return model
        guest.close()
        raise closed(self._name)

    def stats(self) -> InterpreterStats:
        with self._lock:
            num_models = len(self._models)
        return InterpreterStats(
            num_models=num_models,
            num_calls=self.num_calls,
            num_dropped=self.num_dropped,
            num_failed=self.num_failed,
            busy_s=self.busy_s,
        )

    def close(self, deadline_s: float | None = None) -> None:
        with self._lock:
            self._closing = True
            models = list(self._models)
        for model in models:
            model.unload()

    # -- for FrontModel ----------------------------------------------------------

    def forget(self, model: FrontModel) -> None:
        """Takes a model that was unloaded off the list."""
        with self._lock:
            self._models.discard(model)

    def use_threads(self, intra_op_threads: int) -> None:
        """Sets how many threads a call of this thread may use inside torch."""
        if intra_op_threads != self._num_threads:
            torch.set_num_threads(intra_op_threads)
            self._num_threads = intra_op_threads
