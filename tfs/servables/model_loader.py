"""Loads a version whose payload runs in an interpreter: all platforms of torch."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Mapping
from typing import Protocol

from tfs.core.errors import DataLoss, FailedPrecondition
from tfs.core.model_profile import ModelProfile
from tfs.core.resources import (
    MAIN,
    PEAK_RAM_BYTES,
    RAM_BYTES,
    Resource,
    ResourceAllocation,
)
from tfs.core.servable import InferenceTask, Servable
from tfs.core.servable_id import ServableId
from tfs.core.signature import Signature
from tfs.core.version_directory import is_committed, read_manifest, verify_files
from tfs.runtime.interpreter import InterpreterModel
from tfs.runtime.model_source import ModelSource
from tfs.servables.code_digest import code_digest
from tfs.servables.load_measures import LoadMeasures
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
        self._code_digest: str | None = None
        self._measures = LoadMeasures()

    @property
    def code_digest(self) -> str:
        """Tells whether this version runs the same code as another; reads files once.

        Raises:
            ServingError: The version cannot be read.

        """
        if self._code_digest is None:
            try:
                self._code_digest = code_digest(self._path)
            except (OSError, zipfile.BadZipFile) as error:
                raise DataLoss(f"the version cannot be read: {error}") from error
        return self._code_digest

    @property
    def measures(self) -> LoadMeasures:
        """What the last load took."""
        return self._measures

    def estimate_resources(self) -> ResourceAllocation:
        if self._estimate is None:
            stored = self._payload.estimate(self._path)
            profile_of = self._context.profile_of
            profile = None if profile_of is None else profile_of(self.code_digest)
            self._estimate = learned_estimate(stored, profile)
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
        interpreter = self._context.interpreter_for(source)
        begun_s = time.perf_counter()
        model = interpreter.load(source)
        self._measures = LoadMeasures(load_s=time.perf_counter() - begun_s)
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


def learned_estimate(
    stored: ResourceAllocation, profile: ModelProfile | None
) -> ResourceAllocation:
    """Returns what the files tell, raised to what was measured of the same code.

    Files say nothing about activations: a network of one megabyte can take six
    hundred for a batch.
    """
    if profile is None:
        return stored
    peaks = [profile.load_peak_bytes or 0]
    peaks += [s.peak_bytes or 0 for s in profile.signatures.values()]
    ram_bytes = stored[Resource(MAIN, RAM_BYTES, 0)]
    peak_bytes = stored[Resource(MAIN, PEAK_RAM_BYTES, 0)]
    return ResourceAllocation.ram(
        max(ram_bytes, profile.resident_bytes or 0), max(peak_bytes, *peaks)
    )
