"""A loaded version: its interpreter, the queues in front of it, and what is known of it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Final

from tfs.core.errors import ServingError
from tfs.core.servable import InferenceTask, MakeInputs, Outcome, Servable
from tfs.core.servable_id import ServableId
from tfs.core.signature import Signature
from tfs.core.version.model_profile import ModelProfile
from tfs.runtime.interpreter import InterpreterModel
from tfs.runtime.placement import Placement
from tfs.servables.joining.batched import BatchedServable
from tfs.servables.placed_model import PlacedModel

log = logging.getLogger(__name__)

_DRAIN_S: Final = 60.0  # how long to wait for requests in queues that are replaced


class LoadedVersion:
    """Answers requests by its queues, if it has any, or else at once. Thread-safe.

    Handlers keep this object while the version gets queues or moves to another
    interpreter, so neither needs a new handle.

    Args:
        unqueued: Computes: the version on its interpreter, or the servable of a platform
            that needs none.

    Attributes:
        profile: What was measured of the version; None until then.
        example_errors: By signature, why the version failed on its author's example.
        placement: Where the version runs, and why; None until that is decided.
        is_joined_by_parts: Whether its own parts join requests, so nothing before it does.
        unqueued: As above.

    """

    __slots__ = (
        "_front",
        "example_errors",
        "id",
        "is_joined_by_parts",
        "placement",
        "profile",
        "signatures",
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

    def submit(self, task: InferenceTask) -> None:
        """Queues the task, or starts it."""
        self._front.submit(task)

    def submit_all(self, tasks: Sequence[InferenceTask]) -> None:
        """Queues or starts tasks of one form. On the loop."""
        self._front.submit_all(tasks)

    def compute_now(
        self,
        signature_name: str,
        make_inputs: MakeInputs,
        num_rows: int,
        num_tasks: int,
    ) -> Outcome | None:
        """Computes requests now. On the loop."""
        return self._front.compute_now(signature_name, make_inputs, num_rows, num_tasks)

    def put_in_front(self, front: Servable) -> None:
        """Sends later tasks to ``front``: new queues, or none.

        Former queues are drained first-in, first-out, and their counts go on in the new
        ones. Blocks until their requests are answered.
        """
        before, self._front = self.queues, front
        if before is not None and before is not front:
            _drain(before, self.queues)

    def drain(self) -> None:
        """Refuses what comes from now on, and waits until what is queued is answered."""
        if self.queues is not None:
            _drain(self.queues, None)

    def __repr__(self) -> str:
        return f"<LoadedVersion {self.id.slashed}>"


def _drain(queues: BatchedServable, heir: BatchedServable | None) -> None:
    drained = threading.Event()
    queues.close(drained.set, heir)
    if not drained.wait(_DRAIN_S):
        log.warning("event=queues_not_drained servable=%s", queues.id.slashed)
