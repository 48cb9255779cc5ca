"""A servable that can be exchanged for another form of itself while it serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfs.core.errors import ServingError
from tfs.core.model_profile import ModelProfile
from tfs.core.servable import InferenceTask, MakeInputs, Outcome, Servable
from tfs.core.servable_id import ServableId
from tfs.core.signature import Signature
from tfs.runtime.interpreter import InterpreterModel
from tfs.runtime.placement import Placement


class PlacedServable:
    """Hands tasks to the present form of the version. Thread-safe.

    At first that is the bare model; once the version has been measured, it is the same
    model behind batch queues. Handlers keep this object, so a change needs no new
    handle.

    Attributes:
        profile: What was measured of the version; None until then.
        example_errors: By signature, why the version failed on its author's example.
        model: The version on its interpreter; None for a platform that needs none.
        placement: Where the version runs, and why; None until that is decided.
        is_joined_by_parts: Whether its own parts join requests, so nothing before it does.

    """

    __slots__ = (
        "_target",
        "example_errors",
        "id",
        "is_joined_by_parts",
        "model",
        "placement",
        "profile",
        "signatures",
    )

    def __init__(self, target: Servable, model: InterpreterModel | None = None) -> None:
        self.id: ServableId = target.id
        self.signatures: Mapping[str, Signature] = target.signatures
        self.profile: ModelProfile | None = None
        self.example_errors: Mapping[str, ServingError] = {}
        self.model = model
        self.placement: Placement | None = None
        self.is_joined_by_parts = False
        self._target = target

    @property
    def target(self) -> Servable:
        """The servable that answers requests now."""
        return self._target

    def submit(self, task: InferenceTask) -> None:
        """Starts the task on the present target."""
        self._target.submit(task)

    def submit_all(self, tasks: Sequence[InferenceTask]) -> None:
        """Starts tasks of one form on the present target. On the loop."""
        self._target.submit_all(tasks)

    def compute_now(
        self,
        signature_name: str,
        make_inputs: MakeInputs,
        num_rows: int,
        num_tasks: int,
    ) -> Outcome | None:
        """Computes requests now on the present target. On the loop."""
        return self._target.compute_now(
            signature_name, make_inputs, num_rows, num_tasks
        )

    def become(self, target: Servable) -> None:
        """Sends later tasks to ``target``, a form of the same version."""
        self._target = target
