"""Loads a version whose payload runs in an interpreter: all platforms of torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from tfs.core.errors import FailedPrecondition
from tfs.core.example_inputs import check_examples
from tfs.core.model_profile import ModelProfile
from tfs.core.pacing import yield_to_requests
from tfs.core.resources import (
    MAIN,
    PEAK_RAM_BYTES,
    RAM_BYTES,
    Resource,
    ResourceAllocation,
)
from tfs.core.servable import InferenceTask, MakeInputs, Outcome, Servable
from tfs.core.servable_id import ServableId
from tfs.core.signature import Signature
from tfs.core.version_directory import (
    check_payload,
    is_committed,
    read_manifest,
    verify_sizes,
)
from tfs.runtime.guest.model_source import ModelSource, concurrency_of
from tfs.runtime.interpreter import InterpreterModel
from tfs.servables.code_digest import code_digest
from tfs.servables.inside import measurable_of, rehearsal_of, seeding_of
from tfs.servables.measuring.load_measures import LoadMeasures
from tfs.servables.measuring.probe_subject import ServableSubject
from tfs.servables.measuring.profiler import ProfileRequest
from tfs.servables.platform import LoadContext, VersionDescription
from tfs.servables.verification import damage_told, verify_version

# Why code is kept out of the server process, by its digest: a pure function of the code.
_WHY_APART: dict[str, str] = {}
_MAX_KNOWN: Final = 4096


class Payload(Protocol):
    """How a platform reads its versions. Immutable."""

    @property
    def name(self) -> str:
        """The platform's name."""
        ...

    def describe(self, path: str) -> VersionDescription:
        """Returns signatures and entry; runs no model code.

        Raises:
            ServingError: They cannot be read.

        """
        ...

    def estimate(self, path: str) -> ResourceAllocation:
        """Returns what loading and holding the version takes at most.

        Raises:
            ServingError: The payload cannot be read.

        """
        ...

    def why_apart(self, path: str) -> str:
        """Returns why the version must not run in the server process; "" if it may.

        It may if it is a graph, or code that reaches nothing beyond torch, numpy and
        Python (``tfs.servables.source_reach``). Runs no model code.

        Raises:
            ServingError: It cannot be read.
            OSError: It cannot be read.
            zipfile.BadZipFile: It is damaged.

        """
        ...


class ModelServable:
    """A version on its interpreter. Thread-safe; see :class:`Servable`."""

    __slots__ = ("_signatures", "id", "model")

    def __init__(
        self,
        servable_id: ServableId,
        signatures: Mapping[str, Signature],
        model: InterpreterModel,
    ) -> None:
        self.id = servable_id
        self._signatures = signatures
        self.model = model

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """By key."""
        return self._signatures

    def submit(self, task: InferenceTask) -> None:
        """Starts the task on the interpreter's model, which keeps the promises."""
        self.model.submit(task)

    def submit_all(self, tasks: Sequence[InferenceTask]) -> None:
        """Starts each task by itself, because an interpreter takes one at a time."""
        for task in tasks:
            self.model.submit(task)

    def compute_now(
        self,
        signature_name: str,
        make_inputs: MakeInputs,
        num_rows: int,
        num_tasks: int,
    ) -> Outcome | None:
        """Computes one request now, if the interpreter can do that."""
        if num_tasks != 1:
            return None
        return self.model.compute_now(signature_name, make_inputs)

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
        # What was known of its code before the load.
        self._known: ModelProfile | None = None
        self._profile: ModelProfile | None = None
        self._resident_bytes: int | None = None
        self.on_late_profile: Callable[[ModelProfile], None] | None = None
        """Told of a profile that was postponed, on the measuring thread."""

    @property
    def code_digest(self) -> str:
        """The digest that versions with the same code share; reads the files once.

        Raises:
            ServingError: The version cannot be read.

        """
        if self._code_digest is None:
            with damage_told(self._path):
                device = self._context.device
                self._code_digest = code_digest(self._path, device=device)
        return self._code_digest

    @property
    def why_apart(self) -> str:
        """Why the version must not run in the server process; "" if it may.

        Raises:
            ServingError: The version's code digest cannot be computed.

        """
        digest = self.code_digest
        known = _WHY_APART.get(digest)
        if known is not None:
            return known
        try:
            why = self._payload.why_apart(self._path)
        except Exception:
            return "its files cannot be read"  # loading it says what is wrong
        if len(_WHY_APART) >= _MAX_KNOWN:
            _WHY_APART.clear()
        return _WHY_APART.setdefault(digest, why)

    @property
    def concurrency(self) -> int:
        """How many requests at once the version asks to get in one interpreter.

        Raises:
            ServingError: The version cannot be read, or asks for nonsense.

        """
        return concurrency_of(self._payload.describe(self._path).entry, self._path)

    @property
    def profile(self) -> ModelProfile | None:
        """The profile of the loaded version; it may come later than the load."""
        return self._profile

    @property
    def resident_bytes(self) -> int | None:
        """Bytes that the version holds in memory; None if the load could not tell."""
        return self._resident_bytes

    def estimate_resources(self) -> ResourceAllocation:
        if self._estimate is None:
            if is_committed(self._path):
                manifest = read_manifest(self._path)
                verify_sizes(self._path, manifest)
                check_payload(self._path, manifest)
            with damage_told(self._path):
                stored = self._payload.estimate(self._path)
            profiler = self._context.profiler
            known = None if profiler is None else profiler.known(self.code_digest)
            self._estimate = learned_estimate(stored, known)
        return self._estimate

    def load(self, servable_id: ServableId) -> None:
        if self._servable is not None:
            raise FailedPrecondition(f"{servable_id.slashed} is loaded already")
        verify_version(self._path)
        profiler = self._context.profiler
        # This reads the files, once, and only if versions are measured.
        digest = self.code_digest if profiler is not None else ""
        self._known = None if profiler is None else profiler.known(digest)
        description = self._payload.describe(self._path)
        check_examples(self._path, description.signatures)
        source = ModelSource(
            id=servable_id,
            path=self._path,
            platform=self._payload.name,
            entry=description.entry,
            signatures=description.signatures,
            device=self._context.device,
            intra_op_threads=self._context.intra_op_threads,
            code_digest=digest,
            was_measured=self._known is not None,
        )
        interpreter = self._context.interpreter_for(source)
        begun_s = time.perf_counter()
        model = interpreter.load(source)
        load_s = time.perf_counter() - begun_s
        yield_to_requests()
        seen = measurable_of(model)
        self._resident_bytes = seen.load_memory.resident_bytes if seen else None
        servable = ModelServable(servable_id, description.signatures, model)
        self._model, self._servable = model, servable
        if profiler is not None:
            try:
                request = self._request(servable, load_s)
                self._profile = profiler.profile(request)
            except BaseException:
                self.unload()
                raise
            # When the manager asks again, what serving was seen to take stays reserved.
            if self._estimate is not None:
                self._estimate = learned_estimate(self._estimate, self._profile)

    def unload(self) -> None:
        model, servable = self._model, self._servable
        self._model = self._servable = self._profile = self._known = None
        if model is None or servable is None:
            return
        if self._context.profiler is not None:
            self._context.profiler.forget(servable.id)
        model.unload()

    def _request(self, servable: ModelServable, load_s: float) -> ProfileRequest:
        model, known = measurable_of(servable.model), self._known
        if model is not None:
            subject = ServableSubject(
                servable,
                model.pid,
                model.two_thread_scaling,
                lambda: model.last_call_s,
                rehearsal_of(servable.model),
                lambda: model.process_changes,
                seeding_of(servable.model),
            )
            memory = model.load_memory
            load = LoadMeasures(
                model.import_s,
                load_s,
                memory.peak_bytes,
                memory.resident_bytes,
                # This is the same code's value if the interpreter was not asked to
                # measure again.
                model.process_changes or (known.process_changes if known else ""),
            )
        else:
            subject, load = ServableSubject(servable), LoadMeasures(None, load_s)
        return ProfileRequest(
            servable.id, self._path, self.code_digest, subject, load, self._set_profile
        )

    def _set_profile(self, profile: ModelProfile) -> None:
        self._profile = profile
        if self.on_late_profile is not None:
            self.on_late_profile(profile)

    @property
    def servable(self) -> Servable:
        """The loaded version."""
        if self._servable is None:
            raise FailedPrecondition(f"{self._path} is not loaded")
        return self._servable


def learned_estimate(
    stored: ResourceAllocation, profile: ModelProfile | None
) -> ResourceAllocation:
    """Returns the files' estimate, raised to what was measured of the same code.

    Files do not show activations, and a network of one megabyte can take six hundred
    for a batch.
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
