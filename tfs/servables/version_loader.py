"""Loads a version: verify, load, measure or recall, place, batch, warm up; in this order.

Code that was never seen before is first loaded and measured in a process of its own, so
that a crash or hang never reaches the server process. The resulting profile decides
where the version runs (``tfs.runtime.placement``) and whether its rows may be batched.
A version of known code is loaded where it belongs at once.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Final

from batching.cost_table import CostTable
from tfs.core.errors import (
    FailedPrecondition,
    InterpreterDied,
    ServingError,
    Unavailable,
)
from tfs.core.loop.pacing import yield_to_requests
from tfs.core.resources import (
    MAIN,
    PEAK_RAM_BYTES,
    RAM_BYTES,
    Resource,
    ResourceAllocation,
)
from tfs.core.servable import Servable
from tfs.core.servable_id import ServableId
from tfs.core.version.model_profile import ModelProfile
from tfs.core.version_directory import (
    check_examples,
    check_payload,
    is_committed,
    read_manifest,
    verify_sizes,
)
from tfs.runtime.guest.model_source import ModelSource, concurrency_of
from tfs.runtime.placement import Backend, Placement, place
from tfs.servables.joining.batched import BatchedServable
from tfs.servables.loaded_version import LoadedVersion, PlacedModel
from tfs.servables.measuring.probe_subject import (
    TRANSIENT,
    ProbeSubject,
    failing_examples,
    warm_up,
)
from tfs.servables.platform import LoadContext, VersionReader
from tfs.servables.version_files import code_digest, damage_told, verify_version

log = logging.getLogger(__name__)

_MOVE_S: Final = 60.0  # how long to wait for calls that run in a version's old place
# Why code is kept out of the server process, by its digest: a pure function of the code.
_WHY_APART: dict[str, str] = {}
_MAX_KNOWN: Final = 4096
_ANYWHERE: Final = Placement(Backend.PROCESS, "")


class VersionLoader:
    """Loads one version where it belongs. Confined to one caller at a time.

    Implements :class:`tfs.core.loader.Loader`. The digests of the manifest are checked at
    every load, before any code of the version runs.

    Args:
        path: The version directory.
        reader: How the platform reads its versions.
        context: What the server gives every loader.

    """

    def __init__(self, path: str, reader: VersionReader, context: LoadContext) -> None:
        self._path = path
        self._reader = reader
        self._context = context
        self._estimate: ResourceAllocation | None = None
        self._code_digest: str | None = None
        self._concurrency = 1
        self._resident_bytes: int | None = None
        self._load_s = 0.0
        self._has_loaded = False
        # Guards the fields below; leaf.
        self._changed = threading.Condition()
        # Whether the version is leaving the loop; unloading waits for that.
        self._is_moving = False
        self._version: LoadedVersion | None = None
        # Seconds of a slow call that came before the load's end.
        self._slow_s: float | None = None

    @property
    def servable(self) -> Servable:
        """The loaded version."""
        if self._version is None:
            raise FailedPrecondition(f"{self._path} is not loaded")
        return self._version

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

    def estimate_resources(self) -> ResourceAllocation:
        if self._estimate is None:
            if is_committed(self._path):
                manifest = read_manifest(self._path)
                verify_sizes(self._path, manifest)
                check_payload(self._path, manifest)
            with damage_told(self._path):
                stored = self._reader.estimate(self._path)
            profiler = self._context.profiler
            known = None if profiler is None else profiler.known(self.code_digest)
            self._estimate = learned_estimate(stored, known)
        return self._estimate

    def load(self, servable_id: ServableId) -> None:
        if self._version is not None:
            raise FailedPrecondition(f"{servable_id.slashed} is loaded already")
        source = self._verify(servable_id)
        with self._turn() as known:
            version = self._load_model(source, known)
            with self._freed_if_that_fails(version):
                profile = self._measure_or_recall(version, known)
        with self._freed_if_that_fails(version):
            # Measuring that profile has called it, or may have.
            was_called = known is None or known.is_repeatable
            self._place(version, profile, was_called=was_called)
            self._batch(version)
            self._warm_up(version)
        with self._changed:
            self._version = version
            slow_s, self._slow_s = self._slow_s, None
        try:
            if slow_s is not None:
                self._leave_front(slow_s)
            self._has_loaded = True
            self._context.replay(version, self._path)
        except BaseException:
            self.unload()
            raise

    def unload(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._is_moving)
            version, self._version = self._version, None
        if version is not None:
            self._free(version)

    # -- a load ------------------------------------------------------------------------

    def _verify(self, servable_id: ServableId) -> ModelSource:
        verify_version(self._path)
        description = self._reader.describe(self._path)
        check_examples(self._path, description.signatures)
        self._concurrency = concurrency_of(description.entry, self._path)
        context = self._context
        return ModelSource(
            id=servable_id,
            path=self._path,
            platform=self._reader.name,
            entry=description.entry,
            signatures=description.signatures,
            device=context.device,
            intra_op_threads=context.intra_op_threads,
            code_digest=self.code_digest if context.profiler is not None else "",
        )

    def _turn(self) -> AbstractContextManager[ModelProfile | None]:
        """Yields what is known of the code; versions of unknown code come in turn."""
        profiler = self._context.profiler
        return nullcontext() if profiler is None else profiler.turn(self.code_digest)

    def _load_model(
        self, source: ModelSource, known: ModelProfile | None
    ) -> LoadedVersion:
        placement = self._placement_by(known)
        source = replace(source, was_measured=known is not None)
        begun_s = time.perf_counter()
        model = self._context.interpreter_for(placement.backend).load(source)
        self._load_s = time.perf_counter() - begun_s
        yield_to_requests()
        version = LoadedVersion(PlacedModel(model, self._context.clock))
        version.placement = placement
        return version

    @contextlib.contextmanager
    def _freed_if_that_fails(self, version: LoadedVersion) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._free(version)
            raise

    def _measure_or_recall(
        self, version: LoadedVersion, known: ModelProfile | None
    ) -> ModelProfile | None:
        profiler = self._context.profiler
        model = version.model
        assert model is not None  # it was loaded by an interpreter
        loaded = replace(model.loaded, load_s=self._load_s)
        self._resident_bytes = loaded.resident_bytes
        if known is not None and not loaded.process_changes:
            # Its interpreter was not asked to look at that again.
            loaded = replace(loaded, process_changes=known.process_changes)
        if profiler is None:
            return None
        profile = profiler.profile(
            version.id,
            self._path,
            ProbeSubject(version.unqueued),
            replace(loaded, code_digest=self.code_digest),
        )
        # When the manager asks again, what serving was seen to take stays reserved.
        if self._estimate is not None:
            self._estimate = learned_estimate(self._estimate, profile)
        death = profile.how_it_died(at_every_call=True) if profile else ""
        if death and self._is_gated(version.id):
            raise InterpreterDied(
                f"{death}; mend it, or say examples_gate: false in the model's "
                "configuration"
            )
        return profile

    def _placement_by(self, profile: ModelProfile | None) -> Placement:
        options = self._context.placement
        if options is None:
            return _ANYWHERE
        return place(options, profile, self._concurrency, self._why_apart())

    def _why_apart(self) -> str:
        """Returns why the version must not run in the server process; "" if it may."""
        digest = self.code_digest
        known = _WHY_APART.get(digest)
        if known is not None:
            return known
        try:
            why = self._reader.why_apart(self._path)
        except Exception:
            return "its files cannot be read"  # loading it says what is wrong
        if len(_WHY_APART) >= _MAX_KNOWN:
            _WHY_APART.clear()
        return _WHY_APART.setdefault(digest, why)

    def _place(
        self, version: LoadedVersion, profile: ModelProfile | None, *, was_called: bool
    ) -> None:
        """Moves the version to where its profile says, unless it is there.

        A version that remembers calls, and was called for measuring, is loaded anew.
        """
        if profile is None:
            return
        before, placement = version.placement, self._placement_by(profile)
        assert before is not None  # it was loaded somewhere
        remembers_calls = was_called and not profile.is_repeatable
        if placement.backend is not before.backend or remembers_calls:
            model = version.unqueued
            assert isinstance(model, PlacedModel)  # an interpreter loaded it
            interpreter = self._context.interpreter_for(placement.backend)
            deadline_s = self._context.clock.now() + _MOVE_S
            source = replace(model.source, staged_rows={})
            model.move(interpreter.load(source), deadline_s)
        version.profile, version.placement = profile, placement

    def _batch(self, version: LoadedVersion) -> None:
        """Puts queues in front of the version, and tells where it runs."""
        context, model = self._context, version.unqueued
        assert isinstance(model, PlacedModel)  # an interpreter loaded it
        assert version.placement is not None
        profile = version.profile
        backend, why = version.placement.backend, version.placement.reason
        front: Servable = model
        if self._concurrency > 1 and backend is not Backend.DLMOPEN:
            # Its parts join requests. If requests were joined before, the parts would
            # get only one.
            version.is_joined_by_parts = True
            why += "; its requests are not joined before it"
        else:
            front = context.batch(model, self._path, profile, backend)
            rows = front.staged_rows if isinstance(front, BatchedServable) else {}
            if rows:
                whole = self._compute_in_stages(model, rows, backend)
                if whole:
                    why += f"; it is computed whole: {whole}"
                else:
                    assert isinstance(front, BatchedServable)
                    front.close()
                    front = model
                    why += "; it is computed in stages"
        if profile is not None and not profile.is_repeatable:
            why += (
                "; its answers to the same inputs differ, not by chance: it serves as it "
                "was saved, without calls that warm it up"
            )
        version.placement = Placement(backend, why)
        version.put_in_front(front)
        options = context.placement
        is_by_times = options is not None and options.backend is Backend.AUTO
        if backend is Backend.FRONT and is_by_times:
            context.on_front(version.id, self._leave_front)
        note = f"runs in {backend.value}: {why}"
        log.info("event=placed servable=%s note=%r", version.id.slashed, note)
        resident_bytes = self._resident_bytes or (profile and profile.resident_bytes)
        context.note(version.id, note, resident_bytes or None, not self._has_loaded)

    def _warm_up(self, version: LoadedVersion) -> None:
        """Calls the version where it is now, unless it remembers calls."""
        profile = version.profile
        if profile is not None and not profile.is_repeatable:
            return
        if self._context.warm_up_s > 0:
            self._try_examples(version)
            if profile is not None:
                self._call_each_size(version, profile)

    def _compute_in_stages(
        self, model: PlacedModel, rows: Mapping[str, int], backend: Backend
    ) -> str:
        """Has signatures computed in stages where the version is; returns why not, or "".

        Requests then wait where the model runs. It is loaded once more for that, because
        who takes calls in an interpreter is settled before the load.
        """
        if model.source.staged_rows:
            return ""
        if backend is Backend.DLMOPEN:
            return "its interpreter computes it whole"
        source = replace(model.source, staged_rows=rows)
        try:
            staged = self._context.interpreter_for(backend).load(source)
            try:
                model.move(staged, self._context.clock.now() + _MOVE_S)
            except BaseException:
                staged.unload()
                raise
        except ServingError as error:
            log.info("event=not_staged servable=%s why=%r", model.id.slashed, error)
            return error.message
        return ""

    def _is_gated(self, servable_id: ServableId) -> bool:
        """Whether the version must not serve if its example fails, or a signature always dies."""
        context = self._context
        if self._has_loaded or not context.gates_examples:
            return False
        return context.is_covered(servable_id)

    def _try_examples(self, version: LoadedVersion) -> None:
        """Calls the version with its own examples, and shows which it fails on.

        Raises:
            FailedPrecondition: It fails on one, and another version answers.
            Unavailable: The same, and another attempt may succeed.

        """
        # Past the queues: an example may have more rows than the operator lets in.
        subject = ProbeSubject(version.unqueued)
        errors = failing_examples(subject, self._path, self._context.call_s)
        version.example_errors = errors
        if not errors:
            return
        for name, error in errors.items():
            log.warning(
                "event=example_failed servable=%s signature=%s error=%s",
                version.id.slashed,
                name,
                error,
            )
        name, error = next(iter(errors.items()))
        fault = FailedPrecondition(f"{name} fails on its own example: {error.message}")
        is_transient = isinstance(error, TRANSIENT)
        if self._is_gated(version.id):
            raise (Unavailable if is_transient else FailedPrecondition)(
                f"{fault.message}; mend it and tfs retry it, or say examples_gate: false "
                "in the model's configuration"
            ) from error
        if self._context.gates_examples and not is_transient:
            self._context.fault(version.id, fault, not self._has_loaded)

    def _call_each_size(self, version: LoadedVersion, profile: ModelProfile) -> None:
        """Calls the version with every size that its batches may have.

        If the sizes are fixed, each is called three times. Their times are then known,
        and padding goes to the cheapest.
        """
        context = self._context
        costs = {
            name: CostTable(found.call_s_by_rows)
            for name, found in profile.signatures.items()
        }
        sizes: Mapping[str, Sequence[int]] = {}
        if version.queues is not None:
            sizes = {n: o.allowed_rows for n, o in version.queues.queue_options.items()}
        subject = ProbeSubject(version)
        warm_up(
            subject.call,
            subject.signatures,
            self._path,
            lambda name: sizes.get(name) or (1,),
            context.clock.now() + context.warm_up_s,
            context.clock,
            num_rounds=3 if any(sizes.values()) else 1,
            predict_s=lambda name, num_rows: (
                costs[name].predict_s(num_rows) if name in costs else 0.0
            ),
        )

    def _free(self, version: LoadedVersion) -> None:
        version.drain()
        assert isinstance(version.unqueued, PlacedModel)  # an interpreter loaded it
        version.unqueued.unload()

    # -- while it serves ---------------------------------------------------------------

    def _leave_front(self, call_s: float) -> None:
        """Moves the version to a process, because it is slower than was measured."""
        with self._changed:
            version = self._version
            if version is None:
                self._slow_s = call_s
                return
            self._changed.wait_for(lambda: not self._is_moving)
            placement, profile = version.placement, version.profile
            is_in_front = placement is not None and placement.backend is Backend.FRONT
            if self._version is None or not is_in_front or profile is None:
                return
            self._is_moving = True
        # How it scales on two threads was measured while it was quick.
        signatures = {
            name: replace(found, full_batch_s=call_s)
            for name, found in profile.signatures.items()
        }
        profile = replace(profile, two_thread_scaling=None, signatures=signatures)
        try:
            self._place(version, profile, was_called=True)
            self._batch(version)
            self._warm_up(version)
        except ServingError as error:
            log.warning(
                "event=move_failed servable=%s error=%s", version.id.slashed, error
            )
        finally:
            with self._changed:
                self._is_moving = False
                self._changed.notify_all()


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
