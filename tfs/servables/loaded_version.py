"""A loaded version: its interpreter, the queues in front of it, and what is known of it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import FailedPrecondition, ServingError
from tfs.core.servable import InferenceTask, MakeInputs, Outcome, Servable
from tfs.core.servable_id import ServableId
from tfs.core.signature import Signature
from tfs.core.version.model_profile import ModelProfile
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.interpreter import InterpreterModel
from tfs.runtime.placement import Placement
from tfs.servables.joining.batched import BatchedServable

log = logging.getLogger(__name__)

_DRAIN_S: Final = 60.0  # how long to wait for requests in queues that are replaced


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


class LoadedVersion:
    """Answers requests by its queues, if it has any, or else at once. Thread-safe.

    Handlers keep this object while the version gets queues or moves to another
    interpreter, so neither needs a new handle.

    Args:
        unqueued: Computes: the version on its interpreter, or the servable of a platform
            that needs none.

    Attributes:
        submit: Queues a task, or starts it.
        submit_all: Queues or starts tasks of one form. On the loop.
        compute_now: Computes requests now, if that is possible. On the loop.
        profile: What was measured of the version; None until then.
        example_errors: By signature, why the version failed on its author's example.
        placement: Where the version runs, and why; None until that is decided.
        is_joined_by_parts: Whether its own parts join requests, so nothing before it does.
        unqueued: As above.

    """

    __slots__ = (
        "_front",
        "compute_now",
        "example_errors",
        "id",
        "is_joined_by_parts",
        "placement",
        "profile",
        "signatures",
        "submit",
        "submit_all",
        "unqueued",
    )

    def __init__(self, unqueued: Servable) -> None:
        self.id: ServableId = unqueued.id
        self.signatures: Mapping[str, Signature] = unqueued.signatures
        self.profile: ModelProfile | None = None
        self.example_errors: Mapping[str, ServingError] = {}
        self.placement: Placement | None = None
        self.is_joined_by_parts = False
        self.unqueued = unqueued
        self._front = unqueued
        # Those of the front itself: no methods of ours are put around them.
        self.submit = unqueued.submit
        self.submit_all = unqueued.submit_all
        self.compute_now = unqueued.compute_now

    @property
    def model(self) -> InterpreterModel | None:
        """The version where it is now; None for a platform that needs no interpreter."""
        unqueued = self.unqueued
        return unqueued.model if isinstance(unqueued, PlacedModel) else None

    @property
    def queues(self) -> BatchedServable | None:
        """What joins its requests; None if nothing does."""
        front = self._front
        return front if isinstance(front, BatchedServable) else None

    def put_in_front(self, front: Servable) -> None:
        """Sends later tasks to ``front``: new queues, or none.

        Former queues are drained first-in, first-out, and their counts go on in the new
        ones. Blocks until their requests are answered.
        """
        before = self.queues
        if before is not None and isinstance(front, BatchedServable):
            front.continue_counts(before)
        self._front = front
        self.submit = front.submit
        self.submit_all = front.submit_all
        self.compute_now = front.compute_now
        if before is not None and before is not front:
            _drain(before)

    def drain(self) -> None:
        """Refuses what comes from now on, and waits until what is queued is answered."""
        if self.queues is not None:
            _drain(self.queues)

    def __repr__(self) -> str:
        return f"<LoadedVersion {self.id.slashed}>"


def _drain(queues: BatchedServable) -> None:
    drained = threading.Event()
    queues.close(drained.set)
    if not drained.wait(_DRAIN_S):
        log.warning("event=queues_not_drained servable=%s", queues.id.slashed)
