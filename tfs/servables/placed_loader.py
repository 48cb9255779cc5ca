"""Loads a version where it belongs: places it, measures it, batches it.

Code that was never seen before is first loaded and measured in a process of its own, so
that a crash or hang never reaches the server process. The resulting profile decides
where the version runs (``tfs.runtime.placement``) and whether its rows may be batched.
A version of known code is loaded where it belongs at once. While many versions wait,
measuring is postponed: the version serves unbatched in a process, and moves later
without a failed request.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from batching.cost_table import CostTable
from tfs.core.clock import Clock
from tfs.core.errors import FailedPrecondition, ServingError, Unavailable
from tfs.core.loader import Loader
from tfs.core.model_profile import ModelProfile
from tfs.core.resources import ResourceAllocation
from tfs.core.servable import Servable
from tfs.core.servable_id import ServableId
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.interpreter import Interpreter, InterpreterStats
from tfs.runtime.placed_model import PlacedModel
from tfs.runtime.placement import Backend, Placement, PlacementOptions, place
from tfs.servables.joining.batched import BatchedServable
from tfs.servables.measuring.example_warm_up import TRANSIENT, failing_examples, warm_up
from tfs.servables.measuring.probe_subject import ServableSubject
from tfs.servables.measuring.profiler import Profiler
from tfs.servables.model_loader import ModelLoader
from tfs.servables.placed_servable import PlacedServable
from tfs.servables.platform import LoadContext

log = logging.getLogger(__name__)

LeaveFront: TypeAlias = Callable[[float], None]
"""Takes the seconds of the call that was too slow for the serving loop."""

_MOVE_S = 60.0  # how long to wait for calls that run in a version's old place

Batch = Callable[[Servable, str, "ModelProfile | None", Backend], Servable]
"""Puts queues in front of a servable, given its directory, its profile and its backend.
Returns it unchanged if nothing may be batched."""


@dataclass(frozen=True, slots=True)
class PlacementContext:
    """What a server gives every placed loader. Immutable.

    Attributes:
        placement: The placement asked for, and what the host offers.
        interpreter: Returns the interpreter of a backend.
        profiler: Measures code and knows earlier measurements.
        batch: Puts batch queues in front of a servable.
        note: Adds a sentence to a version's state, and its memory if that is known;
            told whether the version is still being loaded.
        on_front: Takes a function that moves a version from the serving loop to a
            process, to be called after a call on the loop took too long. That function
            takes the seconds of the call, blocks, and may be called more than once, on
            any thread but the loop.
        warm_up_s: Longest warm-up derived from examples; 0 for none, and no example is
            tried then.
        clock: Tells the time.
        is_covered: Whether another version answers if the load of this one fails.
        fault: Shows a fault of a version that serves all the same; told whether the
            version is still being loaded.
        gates_examples: Whether the load of a version that fails on its own example fails
            if another one answers.
        call_s: How long a call with a version's own example may take.

    """

    placement: PlacementOptions
    interpreter: Callable[[Backend], Interpreter]
    profiler: Profiler
    batch: Batch
    note: Callable[[ServableId, str, int | None, bool], None]
    warm_up_s: float
    clock: Clock
    on_front: Callable[[ServableId, LeaveFront], None] = lambda _id, _leave: None
    is_covered: Callable[[ServableId], bool] = lambda _id: False
    fault: Callable[[ServableId, ServingError, bool], None] = lambda _i, _e, _l: None
    gates_examples: bool = True
    call_s: float = 30.0


class PlacedLoader:
    """A loader over the loader of a platform. Confined to one caller at a time.

    Implements :class:`tfs.core.loader.Loader`. Versions of platforms that need no
    interpreter are simply loaded and, if possible, batched.

    Args:
        make: Makes the platform's loader in a context.
        path: The version directory.
        context: What the server gives every loader.
        placing: The backends where versions may run, and what decides among them.

    """

    def __init__(
        self,
        make: Callable[[LoadContext], Loader[Servable]],
        path: str,
        context: LoadContext,
        placing: PlacementContext,
    ) -> None:
        self._path = path
        self._placing = placing
        self._entrance = _Entrance(placing)
        self._loader = make(
            replace(
                context,
                interpreter_for=lambda _: self._entrance,
                profiler=placing.profiler,
            )
        )
        self._servable: PlacedServable | None = None
        self._concurrency = 1
        self._why_apart = ""
        self._has_loaded = False
        # Held while a late profile moves the version; unloading waits for that. Guards
        # the fields below, and writing _servable. Rank: that of loaders, outside of
        # every other lock.
        self._moving = threading.Lock()
        self._unloaded = False
        # Seconds of a slow call that came before the load's end.
        self._slow_s: float | None = None

    def estimate_resources(self) -> ResourceAllocation:
        return self._loader.estimate_resources()

    def load(self, servable_id: ServableId) -> None:
        loader, placing = self._loader, self._placing
        if not isinstance(loader, ModelLoader):
            loader.load(servable_id)
            self._servable = PlacedServable(
                placing.batch(loader.servable, self._path, None, Backend.FRONT)
            )
            return
        loader.on_late_profile = self._take_late_profile
        self._concurrency = loader.concurrency
        self._why_apart = loader.why_apart
        with placing.profiler.turn(loader.code_digest) as known:
            placement = self._place(known)
            self._entrance.backend = placement.backend
            loader.load(servable_id)
        servable = PlacedServable(loader.servable, self._entrance.placed)
        try:
            was_known = known is not None and not known.is_repeatable
            self._settle(servable, loader.profile, placement, was_called=not was_known)
        except BaseException:
            _drain(servable.target)
            loader.unload()
            raise
        with self._moving:
            self._servable = servable
            slow_s = self._slow_s
        if slow_s is not None:
            self._leave_front(slow_s)
        self._has_loaded = True

    def unload(self) -> None:
        with self._moving:
            self._unloaded = True
            servable, self._servable = self._servable, None
        if servable is not None:
            _drain(servable.target)
        self._loader.unload()

    @property
    def servable(self) -> Servable:
        """The loaded version."""
        if self._servable is None:
            raise FailedPrecondition(f"{self._path} is not loaded")
        return self._servable

    def _place(self, profile: ModelProfile | None) -> Placement:
        return place(
            self._placing.placement, profile, self._concurrency, self._why_apart
        )

    def _settle(
        self,
        servable: PlacedServable,
        profile: ModelProfile | None,
        placement: Placement,
        *,
        was_called: bool,
    ) -> None:
        """Moves the version to where its profile says, and puts queues in front of it.

        ``was_called`` tells whether it has, or may have, been called for measuring that
        profile.
        """
        placing, model = self._placing, self._entrance.placed
        remembers = profile is not None and not profile.is_repeatable
        if profile is not None and model is not None:
            placement = self._place(profile)
            is_used = was_called and remembers
            if placement.backend is not self._entrance.backend or is_used:
                interpreter = placing.interpreter(placement.backend)
                deadline_s = placing.clock.now() + _MOVE_S
                model.move(interpreter.load(model.source), deadline_s)
                self._entrance.backend = placement.backend
        backend = placement.backend
        why = placement.reason
        if self._concurrency > 1 and backend is not Backend.DLMOPEN:
            # Its parts join requests. If requests were joined before, the parts would
            # get only one.
            target = self._loader.servable
            servable.is_joined_by_parts = True
            why += "; its requests are not joined before it"
        else:
            target = placing.batch(self._loader.servable, self._path, profile, backend)
        if remembers:
            why += (
                "; its answers to the same inputs differ, not by chance: it serves as it "
                "was saved, without calls that warm it up"
            )
        servable.profile = profile
        servable.placement = Placement(backend, why)
        servable.become(target)
        asked, has_processes = (
            placing.placement.backend,
            placing.placement.process_available,
        )
        if backend is Backend.FRONT and asked is Backend.AUTO and has_processes:
            placing.on_front(servable.id, self._leave_front)
        note = f"runs in {backend.value}: {why}"
        log.info("event=placed servable=%s note=%r", servable.id.slashed, note)
        resident_bytes = self._resident_bytes(profile)
        placing.note(servable.id, note, resident_bytes, not self._has_loaded)
        if remembers or placing.warm_up_s <= 0:
            return
        # Without a profile others wait to be loaded; then only versions are called that
        # take the place of one that serves.
        if profile is not None or self._is_gated(servable.id):
            self._try_examples(servable)
        if profile is not None:
            until_s = placing.clock.now() + placing.warm_up_s
            self._warm_up(servable, target, profile, until_s)

    def _is_gated(self, servable_id: ServableId) -> bool:
        """Whether the version must not serve if it fails on its own example."""
        placing = self._placing
        if self._has_loaded or not placing.gates_examples:
            return False
        return placing.is_covered(servable_id)

    def _try_examples(self, servable: PlacedServable) -> None:
        """Calls the version with its own examples, and shows which it fails on.

        Raises:
            FailedPrecondition: It fails on one, and another version answers.
            Unavailable: The same, and another attempt may succeed.

        """
        # Past the queues: an example may have more rows than the operator lets in.
        subject = ServableSubject(self._loader.servable)
        errors = failing_examples(subject, self._path, self._placing.call_s)
        servable.example_errors = errors
        if not errors:
            return
        for name, error in errors.items():
            log.warning(
                "event=example_failed servable=%s signature=%s error=%s",
                servable.id.slashed,
                name,
                error,
            )
        name, error = next(iter(errors.items()))
        fault = FailedPrecondition(f"{name} fails on its own example: {error.message}")
        is_transient = isinstance(error, TRANSIENT)
        if self._is_gated(servable.id):
            raise (Unavailable if is_transient else FailedPrecondition)(
                f"{fault.message}; mend it and tfs retry it, or say examples_gate: false "
                "in the model's configuration"
            ) from error
        if self._placing.gates_examples and not is_transient:
            self._placing.fault(servable.id, fault, not self._has_loaded)

    def _warm_up(
        self,
        servable: PlacedServable,
        target: Servable,
        profile: ModelProfile,
        until_s: float,
    ) -> None:
        """Calls the version where it is now, with every size that its batches may have.

        If the sizes are fixed, each is called three times. Their times are then known,
        and padding goes to the cheapest.
        """
        costs = {
            name: CostTable(found.call_s_by_rows)
            for name, found in profile.signatures.items()
        }
        sizes: Mapping[str, Sequence[int]] = {}
        if isinstance(target, BatchedServable):
            sizes = {n: o.allowed_rows for n, o in target.queue_options.items()}
        warm_up(
            ServableSubject(servable),
            self._path,
            lambda name: sizes.get(name) or (1,),
            until_s,
            self._placing.clock,
            num_rounds=3 if any(sizes.values()) else 1,
            predict_s=lambda name, num_rows: (
                costs[name].predict_s(num_rows) if name in costs else 0.0
            ),
        )

    def _resident_bytes(self, profile: ModelProfile | None) -> int | None:
        """Returns the bytes that this load took, or else a load of the same code."""
        loader = self._loader
        own = loader.resident_bytes if isinstance(loader, ModelLoader) else None
        return own or (profile.resident_bytes if profile is not None else None)

    def _leave_front(self, call_s: float) -> None:
        """Moves the version to a process, because it is slower than was measured."""
        with self._moving:
            servable = self._servable
            if self._entrance.backend is not Backend.FRONT or servable is None:
                self._slow_s = call_s
                return
            profile = servable.profile
        if profile is not None:
            # How it scales on two threads was measured while it was quick.
            signatures = {
                name: replace(found, full_batch_p99_s=call_s)
                for name, found in profile.signatures.items()
            }
            self._take_late_profile(
                replace(profile, two_thread_scaling=None, signatures=signatures)
            )

    def _take_late_profile(self, profile: ModelProfile) -> None:
        """Moves the serving version to where its profile says. On the measuring thread."""
        with self._moving:
            servable = self._servable
            if servable is None or self._unloaded:
                return
            before = servable.target
            try:
                placement = self._place(profile)
                self._settle(servable, profile, placement, was_called=True)
            except ServingError as error:
                log.warning(
                    "event=move_failed servable=%s error=%s", servable.id.slashed, error
                )
                return
            if before is not servable.target:
                _drain(before, servable.target)


class _Entrance:
    """The interpreter that a platform's loader sees; any backend may be behind it.

    Confined to the loader.
    """

    def __init__(self, placing: PlacementContext) -> None:
        self._placing = placing
        self.backend = Backend.PROCESS
        self.placed: PlacedModel | None = None

    @property
    def name(self) -> str:
        return f"placed-{self.backend.value}"

    def start(self) -> None:
        """Does nothing: the backends are the server's."""

    def load(self, source: ModelSource) -> PlacedModel:
        model = self._placing.interpreter(self.backend).load(source)
        self.placed = PlacedModel(model, self._placing.clock)
        return self.placed

    def stats(self) -> InterpreterStats:
        return self._placing.interpreter(self.backend).stats()

    def close(self, deadline_s: float | None = None) -> None:
        """Does nothing: the backends are the server's."""


def _drain(target: Servable, heir: Servable | None = None) -> None:
    """Waits until the batch queues of ``target``, if it has any, are empty.

    ``heir`` continues its counts.
    """
    if not isinstance(target, BatchedServable):
        return
    drained = threading.Event()
    target.close(drained.set, heir if isinstance(heir, BatchedServable) else None)
    if not drained.wait(_MOVE_S):
        log.warning("event=queues_not_drained servable=%s", target.id.slashed)
