"""A servable and a look-up for handler tests: no model, no manager, all in the open."""

from __future__ import annotations

from typing import ClassVar

from tfs.core.call import Call
from tfs.core.dtype import FLOAT32, INT64
from tfs.core.errors import InvalidArgument, NotFound, ServingError
from tfs.core.servable import InferenceTask, OneByOne, Servable, Tensors
from tfs.core.servable_handle import ServableHandle
from tfs.core.servable_id import ServableId
from tfs.core.signature import (
    FeatureKind,
    FeatureSpec,
    Method,
    Signature,
    TensorSpec,
)
from tfs.core.tensor_view import TensorView

PREDICT = Signature(
    Method.PREDICT,
    {"x": TensorSpec(FLOAT32, (-1, 2)), "scale": TensorSpec(FLOAT32, (1,))},
    {"y": TensorSpec(FLOAT32, (-1, 2)), "n": TensorSpec(INT64, (-1,))},
    defaults={"scale": TensorView(FLOAT32, (1,), b"\0\0\x80?")},
)
FEATURES = {"x": FeatureSpec("x", FeatureKind.FIXED, FLOAT32, (2,))}
CLASSIFY = Signature(
    Method.CLASSIFY,
    {"x": TensorSpec(FLOAT32, (-1, 2))},
    {"scores": TensorSpec(FLOAT32, (-1, 2))},
    labels=("no", "yes"),
    features=FEATURES,
)
REGRESS = Signature(
    Method.REGRESS,
    {"x": TensorSpec(FLOAT32, (-1, 2))},
    {"outputs": TensorSpec(FLOAT32, (-1, 1))},
    features=FEATURES,
)


class EchoServable(OneByOne):
    """Answers from its inputs, at once or when the test says so."""

    id = ServableId("m", 3)
    signatures: ClassVar[dict[str, Signature]] = {
        "serving_default": PREDICT,
        "classify": CLASSIFY,
        "regress": REGRESS,
    }

    def __init__(self) -> None:
        self.tasks: list[InferenceTask] = []
        self.error: ServingError | None = None
        self.is_paused = False

    def submit(self, task: InferenceTask) -> None:
        self.tasks.append(task)
        if not self.is_paused:
            self.answer(task)

    def answer(self, task: InferenceTask) -> None:
        """Finishes a task."""
        task.on_done(self.error or self._outputs(task))

    def _outputs(self, task: InferenceTask) -> Tensors:
        x = task.inputs["x"]
        if task.signature.method is Method.CLASSIFY:
            return {"scores": x}
        if task.signature.method is Method.REGRESS:
            halves = b"".join(
                bytes(x.rows(index, index + 1).data[:4])  # type: ignore[arg-type]
                for index in range(task.num_rows)
            )
            return {"outputs": TensorView(FLOAT32, (task.num_rows, 1), halves)}
        counts = b"".join(i.to_bytes(8, "little") for i in range(task.num_rows))
        return {"y": x, "n": TensorView(INT64, (task.num_rows,), counts)}


class OneModel:
    """Looks up the one servable, as version 3, label "live" or the latest."""

    def __init__(self) -> None:
        self.servable = EchoServable()
        self.handle: ServableHandle[Servable] = ServableHandle(
            self.servable.id, self.servable
        )
        self.keys: list[bytes | None] = []

    def acquire(
        self,
        name: str,
        version: int | None,
        label: str | None,
        client_id: bytes | None,
        call: Call,
    ) -> ServableHandle[Servable]:
        self.keys.append(client_id)
        return self.look_at(name, version, label)

    def look_at(
        self, name: str, version: int | None, label: str | None
    ) -> ServableHandle[Servable]:
        if name != "m" or version not in (None, 3):
            raise NotFound(f"Servable not found for request: Latest({name})")
        if label not in (None, "live"):
            raise InvalidArgument(f"Unrecognized servable version label: {label}")
        self.handle.pin(None)
        return self.handle

    def acquire_shared(
        self, name: str, version: int | None, label: str | None, num: int
    ) -> ServableHandle[Servable] | None:
        return None  # each is looked up by itself
