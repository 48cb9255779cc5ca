"""Doubles for what a loader is given."""

from __future__ import annotations

from tfs.core.errors import ServingError
from tfs.core.servable import CancelToken, InferenceTask, Outcome
from tfs.core.servable_id import ServableId
from tfs.core.signature import DEFAULT_SIGNATURE
from tfs.core.tensor_view import TensorView
from tfs.core.version.model_profile import ModelProfile
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.interpreter import OnAnotherThread

ID = ServableId("digits", 1)


class EchoModel(OnAnotherThread):
    """Answers with its inputs; remembers whether it was unloaded."""

    pid, last_call_s, staged_status = 1, None, None

    def __init__(self, source: ModelSource) -> None:
        self.source = source
        self.loaded = ModelProfile()
        self.unloaded = 0

    def two_thread_scaling(self, name: str, inputs: object, duration_s: float) -> None:
        """Measures nothing."""

    def rehearse(self, name: str, inputs: object, timeout_s: float) -> None:
        """Calls nothing."""

    def seed(self, seed: int | None) -> bool:
        return False

    def submit(self, task: InferenceTask) -> None:
        task.on_done(task.inputs)

    def unload(self) -> None:
        self.unloaded += 1


class FakeInterpreter:
    """Loads echoes, or fails as told."""

    name = "fake"

    def __init__(self, error: ServingError | None = None) -> None:
        self.error = error
        self.models: list[EchoModel] = []

    def load(self, source: ModelSource) -> EchoModel:
        if self.error is not None:
            raise self.error
        self.models.append(EchoModel(source))
        return self.models[-1]

    @property
    def num_models(self) -> int:
        return len(self.models)

    def close(self, deadline_s: float | None = None) -> None:
        pass


def task_for(
    servable_signatures: object, inputs: dict[str, TensorView], done: list[Outcome]
) -> InferenceTask:
    """Returns a task of the default signature that appends its outcome."""
    assert isinstance(servable_signatures, dict)
    signature = servable_signatures[DEFAULT_SIGNATURE]
    return InferenceTask(
        DEFAULT_SIGNATURE, signature, inputs, done.append, cancel=CancelToken()
    )
