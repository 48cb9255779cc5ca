"""A servable that multiplies, and that a test can make slow, wrong or fail."""

from __future__ import annotations

import struct

from tfs.core.dtype import FLOAT32
from tfs.core.errors import ServingError
from tfs.core.servable import InferenceTask, OneByOne, Outcome
from tfs.core.servable_id import ServableId
from tfs.core.signature import DEFAULT_SIGNATURE, Method, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.testing.fake_loader import FakeLoader, FakeServable

SIGNATURE = Signature(
    Method.PREDICT,
    {"x": TensorSpec(FLOAT32, (-1, 2))},
    {"y": TensorSpec(FLOAT32, (-1, 2))},
)


def floats(*rows: tuple[float, float]) -> TensorView:
    """Returns rows of two."""
    numbers = [number for row in rows for number in row]
    data = struct.pack(f"<{len(numbers)}f", *numbers)
    return TensorView(FLOAT32, (len(rows), 2), memoryview(data))


class PuppetServable(FakeServable, OneByOne):
    """Answers ``y = x * factor``, at once or when told.

    Attributes:
        factor: By default the version number.
        error: What it answers instead.
        is_holding: Whether tasks wait in ``held`` for ``release``.
        tasks: All that were submitted.

    """

    def __init__(self, servable_id: ServableId, value: object = None) -> None:
        super().__init__(servable_id, value)
        self.factor = float(servable_id.version)
        self.error: ServingError | None = None
        self.is_holding = False
        self.tasks: list[InferenceTask] = []
        self.held: list[InferenceTask] = []
        self.signatures = {DEFAULT_SIGNATURE: SIGNATURE}

    def submit(self, task: InferenceTask) -> None:
        """Answers, or holds the task."""
        self.tasks.append(task)
        if self.is_holding:
            self.held.append(task)
        else:
            task.on_done(self._answer(task))

    def release(self) -> None:
        """Answers what is held."""
        held, self.held = self.held, []
        for task in held:
            task.on_done(self._answer(task))

    def _answer(self, task: InferenceTask) -> Outcome:
        if self.error is not None:
            return self.error
        view = task.inputs["x"]
        data = bytes(view.data)  # type: ignore[arg-type]  # floats, never strings
        numbers = struct.unpack(f"<{len(data) // 4}f", data)
        scaled = struct.pack(f"<{len(numbers)}f", *(n * self.factor for n in numbers))
        return {"y": TensorView(FLOAT32, view.shape, memoryview(scaled))}


class PuppetLoader(FakeLoader):
    """Loads a :class:`PuppetServable`."""

    def load(self, servable_id: ServableId) -> None:
        super().load(servable_id)
        self._servable = PuppetServable(self.id, self._value)
