"""Loads a version whose payload runs in an interpreter: all platforms of torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tfs.core.errors import FailedPrecondition
from tfs.core.resources import ResourceAllocation
from tfs.core.servable import InferenceTask, Servable
from tfs.core.servable_id import ServableId
from tfs.core.signature import Signature
from tfs.core.version_directory import is_committed, read_manifest, verify_files
from tfs.runtime.interpreter import InterpreterModel
from tfs.runtime.model_source import ModelSource
from tfs.servables.platform import LoadContext, VersionDescription


class Payload(Protocol):
    """How a platform reads what is special about its versions. Immutable."""

    @property
    def name(self) -> str:
        """The platform's name."""
        ...

    def describe(self, path: str) -> VersionDescription:
        """Returns signatures and entry; runs no model code.

        Raises:
            ServingError: They cannot be had.

        """
        ...

    def estimate(self, path: str) -> ResourceAllocation:
        """Returns what loading and holding the version takes at most.

        Raises:
            ServingError: The payload cannot be read.

        """
        ...


class ModelServable:
    """A version on its interpreter. Thread-safe; see :class:`Servable`."""

    __slots__ = ("_model", "_signatures", "id")

    def __init__(
        self,
        servable_id: ServableId,
        signatures: Mapping[str, Signature],
        model: InterpreterModel,
    ) -> None:
        self.id = servable_id
        self._signatures = signatures
        self._model = model

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """By key."""
        return self._signatures

    def submit(self, task: InferenceTask) -> None:
        """Starts the task on the interpreter, which keeps a servable's promises."""
        self._model.submit(task)

    def __repr__(self) -> str:
        return f"<ModelServable {self.id.slashed}>"


class ModelLoader:
    """Loads one version into the interpreter that the context chooses.

    The digests of the manifest are checked at every load, before any code of the
    version runs. Confined to one caller at a time; see :class:`tfs.core.loader.Loader`.
    """

    def __init__(self, path: str, payload: Payload, context: LoadContext) -> None:
        self._path = path
        self._payload = payload
        self._context = context
        self._model: InterpreterModel | None = None
        self._servable: ModelServable | None = None
        self._estimate: ResourceAllocation | None = None

    def estimate_resources(self) -> ResourceAllocation:
        if self._estimate is None:
            self._estimate = self._payload.estimate(self._path)
        return self._estimate

    def load(self, servable_id: ServableId) -> None:
        if self._servable is not None:
            raise FailedPrecondition(f"{servable_id.slashed} is loaded already")
        if is_committed(self._path):
            verify_files(self._path, read_manifest(self._path))
        description = self._payload.describe(self._path)
        source = ModelSource(
            id=servable_id,
            path=self._path,
            platform=self._payload.name,
            entry=description.entry,
            signatures=description.signatures,
            device=self._context.device,
            intra_op_threads=self._context.intra_op_threads,
        )
        model = self._context.interpreter_for(source).load(source)
        self._model = model
        self._servable = ModelServable(servable_id, description.signatures, model)

    def unload(self) -> None:
        model, self._model, self._servable = self._model, None, None
        if model is None:
            return
        model.unload()

    @property
    def servable(self) -> Servable:
        """The loaded version."""
        if self._servable is None:
            raise FailedPrecondition(f"{self._path} is not loaded")
        return self._servable
