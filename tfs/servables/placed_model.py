"""A version on its interpreter, for which another one may be exchanged while it serves."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence

from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import FailedPrecondition
from tfs.core.servable import InferenceTask, MakeInputs, Outcome
from tfs.core.servable_id import ServableId
from tfs.core.signature import Signature
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.interpreter import InterpreterModel


class PlacedModel:
    """Passes tasks to where the version is now. Thread-safe; a ``Servable``."""

    def __init__(self, model: InterpreterModel, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        # Guards both fields; leaf lock: nothing is submitted or unloaded under it.
        self._lock = threading.Lock()
        self._drained = threading.Condition(self._lock)
        self._model = model
        self._num_running: dict[InterpreterModel, int] = {model: 0}

    @property
    def source(self) -> ModelSource:
        """What was loaded."""
        return self._model.source

    @property
    def id(self) -> ServableId:
        """The version."""
        return self._model.source.id

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """By key."""
        return self._model.source.signatures

    @property
    def model(self) -> InterpreterModel:
        """The version where it is now."""
        return self._model

    def submit(self, task: InferenceTask) -> None:
        """Starts the task where the version is now."""
        with self._lock:
            model = self._model
            self._num_running[model] += 1
        task.on_done = self._counted(model, task.on_done)
        model.submit(task)

    def submit_all(self, tasks: Sequence[InferenceTask]) -> None:
        """Starts each task by itself, because an interpreter takes one at a time."""
        for task in tasks:
            self.submit(task)

    def compute_now(
        self,
        signature_name: str,
        make_inputs: MakeInputs,
        num_rows: int = 1,
        num_tasks: int = 1,
    ) -> Outcome | None:
        """Computes one request now, if the interpreter can do that.

        These calls are not counted. Such a call ends before anything else happens on
        its thread, and its interpreter waits for it before it unloads.
        """
        if num_tasks != 1:
            return None
        return self._model.compute_now(signature_name, make_inputs)

    def move(self, model: InterpreterModel, deadline_s: float | None = None) -> None:
        """Sends new tasks to ``model``, waits for the old ones, unloads the old model.

        No task fails because of it. Blocks; call it on a manager thread, one move at a
        time.

        Raises:
            FailedPrecondition: Old tasks were still running at the (monotonic)
                deadline. The move has happened, but the old model stays until
                ``unload``.

        """
        with self._lock:
            old, self._model = self._model, model
            self._num_running.setdefault(model, 0)
            while self._num_running[old]:
                if deadline_s is not None and self._clock.now() >= deadline_s:
                    raise FailedPrecondition(
                        f"{model.source.id.slashed}: calls in its old place do not end"
                    )
                self._clock.wait(self._drained, deadline_s)
            del self._num_running[old]
        old.unload()

    def unload(self) -> None:
        """Frees it wherever it is. Blocks; idempotent."""
        with self._lock:
            # Also where a move had to leave calls behind.
            models = list(self._num_running)
        with contextlib.ExitStack() as stack:
            for model in models:
                stack.callback(model.unload)

    def _counted(
        self, model: InterpreterModel, on_done: Callable[[Outcome], None]
    ) -> Callable[[Outcome], None]:
        def done(outcome: Outcome) -> None:
            with self._lock:
                num_running = self._num_running[model] = self._num_running[model] - 1
                if not num_running and model is not self._model:
                    # The version is being moved away from it.
                    self._drained.notify_all()
            on_done(outcome)

        return done

    def __repr__(self) -> str:
        return f"<PlacedModel {self.id.slashed}>"
