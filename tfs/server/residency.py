"""Models that are loaded when somebody asks for them, and make way for others.

A model with ``residency: ON_DEMAND`` is *registered* as soon as a version of it is found:
it counts as one that answers. Its first request has it loaded, and all who ask meanwhile
wait for that one load. If memory is short for a load, the models that were asked for least
recently are unloaded, and are registered again.

What a source aspires of such a model is passed on only while it is admitted; otherwise the
target is told that nothing of it is wanted. So whatever lies behind (copying, loading,
swapping, unloading) knows nothing of demand.

(TensorFlow Serving: core/caching_manager.h, which unloads nothing.)
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from managers.aspired_versions_manager import AspiredVersionsManager
from managers.loading.load_admission import ResourceTracker
from managers.state_monitor import ServableStateMonitor
from sources.servable_to_monitor import StoragePath
from tfs.core.call import Call
from tfs.core.errors import (
    Cancelled,
    NotFound,
    ResourceExhausted,
    ServingError,
    shown_to_callers,
)
from tfs.core.executor import Executor
from tfs.core.loop.serving_loop import LoopEntry
from tfs.core.resources import ResourceAllocation
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.core.source import AspiredVersions, AspiredVersionsCallback, Outlet
from tfs.handlers.model_lookup import NotResident, OnLoaded

_COMING = (ManagerState.START, ManagerState.LOADING)


@dataclass(eq=False, slots=True)
class _Model:
    """A model that is loaded on demand.

    Attributes:
        name: Its name.
        aspired: What the source said of it last; None: nothing yet.
        versions: The versions in that.
        is_admitted: Whether they are passed on.
        is_resident: Whether it is loaded, so that requests need not wait.
        last_use: Grows from one request, of any model, to the next.
        waiting: Who waits for its load, in order.

    """

    name: str
    aspired: AspiredVersions[StoragePath] | None = None
    versions: tuple[int, ...] = ()
    is_admitted: bool = False
    is_resident: bool = False
    last_use: int = 0
    waiting: dict[OnLoaded, None] = field(default_factory=dict)


class Residency:
    """Loads models on demand, and unloads those that nobody asks for. Thread-safe.

    It is a source adapter as well, between the source and the manager.

    Args:
        manager: Loads and unloads.
        monitor: Knows the states of versions.
        executor: One thread; decides, and calls the target.
        loop: Where those who wait are told.
        memory: What loads reserve; None: there is no limit, and nothing makes way.

    Attributes:
        models: The models that are loaded on demand, by name.

    """

    def __init__(
        self,
        manager: AspiredVersionsManager,
        monitor: ServableStateMonitor,
        executor: Executor,
        loop: LoopEntry,
        memory: ResourceTracker | None,
    ) -> None:
        self._manager = manager
        self._monitor = monitor
        self._executor = executor
        self._loop = loop
        self._memory = memory
        self._uses = itertools.count(1)
        self._outlet: Outlet[StoragePath] = Outlet()
        # Guards which models there are, what is aspired of each and is_admitted, and orders
        # what the target is told of a name: held while it is told. Rank: after the turn of
        # a source, before any lock of a target.
        self._turn = threading.Lock()
        # Guards is_resident and waiting of every model, and their number; leaf.
        self._lock = threading.Lock()
        self._num_waiting = 0
        self.models: Mapping[str, object] = {}  # replaced as a whole
        self._models: dict[str, _Model] = {}  # the same
        # Of the executor's thread: models whose load lacks memory that is being freed.
        self._short: dict[str, None] = {}
        # The same: models that were kept back and may still hold memory.
        self._leaving: dict[str, _Model] = {}

    def aspired_versions_callback(self) -> AspiredVersionsCallback[StoragePath]:
        """Returns the function for sources to call; it does nothing after ``close``."""
        return self._take

    def set_aspired_versions_callback(
        self, callback: AspiredVersionsCallback[StoragePath]
    ) -> None:
        """Connects the outgoing side; calls that waited for it go on."""
        self._outlet.set_aspired_versions_callback(callback)

    def close(self) -> None:
        """Makes later calls of sources do nothing, and ends those that wait."""
        self._outlet.close()

    def set_models(self, names: Collection[str]) -> Collection[str]:
        """Sets which models are loaded on demand; returns those that are new.

        A new one that is loaded already stays until its memory is needed; have the source
        say again what it aspires of it.
        """
        before = self._models
        models = {name: before.get(name) or _Model(name) for name in names}
        new = models.keys() - before.keys()
        for name in new:
            if self._monitor.available_versions(name):
                models[name].is_admitted = models[name].is_resident = True
        gone = [before[name] for name in before.keys() - models.keys()]
        with self._turn:
            for model in gone:
                if model.aspired is not None and not model.is_admitted:
                    self._outlet.emit(model.aspired)
            self.models = self._models = models
        for model in gone:  # it is loaded now, or gone: whoever waits looks again
            self._tell(model, None)
        return new

    def versions(self, name: str) -> Sequence[int]:
        """Returns the versions that an on-demand model has; none for any other model."""
        model = self._models.get(name)
        return () if model is None else model.versions

    def is_resident(self, name: str) -> bool | None:
        """Whether an on-demand model is loaded; None for any other model."""
        model = self._models.get(name)
        return None if model is None else model.is_resident

    def registered(self, name: str) -> Sequence[int]:
        """Returns the versions that the first request will have loaded."""
        model = self._models.get(name)
        return () if model is None or model.is_admitted else model.versions

    def outlooks(self) -> Mapping[str, object]:
        """Returns what differs when models fare otherwise that are not loaded yet.

        Those that have no versions are left out.
        """
        states = self._monitor.version_states
        return {
            name: (model.versions, states(name))
            for name, model in self._models.items()
            if model.versions and not model.is_admitted
        }

    def note_use(self, name: str) -> None:
        """Notes that a request asks for a model."""
        model = self._models.get(name)
        if model is not None:
            model.last_use = next(self._uses)

    @property
    def is_awaited(self) -> bool:
        """Whether a request waits for a load."""
        return self._num_waiting > 0

    def require(self, name: str) -> None:
        """Returns if a request can be sent to a model's versions, as far as is known.

        Raises:
            NotResident: It has to wait for the model's load.

        """
        model = self._models.get(name)
        if model is None or model.is_resident or not model.versions:
            return
        raise NotResident(
            f"{name} is not loaded: it is loaded on demand",
            functools.partial(self._wait, model),
        )

    def note_state(self, state: ServableState) -> None:
        """Follows the states of versions; under any lock, on any thread."""
        name = state.id.name
        if not self._models:
            return
        if name in self._models or isinstance(state.error, ResourceExhausted):
            self._loop.post(functools.partial(self._submit, self._look, name))

    # -- waiting ------------------------------------------------------------------------

    def _wait(self, model: _Model, call: Call, on_loaded: OnLoaded) -> None:
        """Tells ``on_loaded`` when the model is loaded, has failed, or the call ends."""
        with self._lock:
            is_first = not model.waiting
            is_loaded = model.is_resident or self._models.get(model.name) is not model
            if not is_loaded:
                model.waiting[on_loaded] = None
                self._num_waiting += 1
        if is_loaded:
            self._loop.post(functools.partial(on_loaded, None))
            return
        call.on_cancel(functools.partial(self._give_up, model, call, on_loaded))
        if is_first:
            self._submit(self._admit, model.name)

    def _give_up(self, model: _Model, call: Call, on_loaded: OnLoaded) -> None:
        with self._lock:
            if model.waiting.pop(on_loaded, self) is self:
                return
            self._num_waiting -= 1
        on_loaded(call.cancel.error or Cancelled(f"nobody waits for {model.name}"))

    def _tell(self, model: _Model, error: ServingError | None) -> None:
        with self._lock:
            waiting, model.waiting = model.waiting, {}
            self._num_waiting -= len(waiting)
        for on_loaded in waiting:
            self._loop.post(functools.partial(on_loaded, error))

    # -- deciding, on the executor --------------------------------------------------------

    def _submit(self, fn: Callable[[str], None], name: str) -> None:
        with contextlib.suppress(RuntimeError):  # the server ends
            self._executor.submit(functools.partial(fn, name))

    def _admit(self, name: str) -> None:
        model = self._models.get(name)
        if model is None or model.is_admitted:
            return
        self._monitor.forget_ended(name)  # it is not this load that failed
        self._let(model, is_admitted=True)

    def _let(self, model: _Model, *, is_admitted: bool, reason: str = "") -> None:
        """Passes on what is aspired of a model, or tells the target that nothing of it is."""
        with self._turn:
            model.is_admitted, aspired = is_admitted, model.aspired
            if aspired is None or self._models.get(model.name) is not model:
                return
            if not is_admitted:
                aspired = replace(aspired, versions=(), reason=reason)
            self._outlet.emit(aspired)

    def _take(self, aspired: AspiredVersions[StoragePath]) -> None:
        if not self._outlet.wait_connected():
            return
        with self._turn:
            model = self._models.get(aspired.name)
            if model is not None:
                model.aspired = aspired
                model.versions = tuple(each.id.version for each in aspired.versions)
                if model.versions and not model.is_admitted:
                    return
            self._outlet.emit(aspired)

    def _look(self, name: str) -> None:
        """Follows what has become of a model's versions."""
        for each in (name, *self._short):
            self._settle(each)

    def _settle(self, name: str) -> None:
        model = self._models.get(name)
        states = self._monitor.version_states(name)
        if self._make_room(name):
            self._short[name] = None
            return
        self._short.pop(name, None)
        if all(each.manager_state is ManagerState.END for each in states):
            self._leaving.pop(name, None)
        if model is None or not model.is_admitted:
            return
        if any(each.manager_state in _COMING and not each.is_late for each in states):
            return
        if any(each.manager_state is ManagerState.AVAILABLE for each in states):
            with self._lock:
                model.is_resident = True
            self._tell(model, None)
            return
        failed = [each.error for each in states if each.error is not None]
        if failed:
            self._withhold(model, "its load failed; the next request tries again")
            self._tell(model, shown_to_callers(failed[0]))

    def _withhold(self, model: _Model, reason: str) -> None:
        with self._lock:
            model.is_resident = False
        self._leaving[model.name] = model
        self._let(model, is_admitted=False, reason=reason)

    # -- memory ---------------------------------------------------------------------------

    def _refused(self, name: str) -> ResourceAllocation | None:
        """Returns what a model's version takes that was refused for want of memory."""
        for state in self._monitor.version_states(name):
            status = self._manager.load_status(state.id)
            if status is not None and status.refused is not None:
                return status.refused
        return None

    def _make_room(self, name: str) -> bool:
        """Has models unloaded until what was refused fits; False if that cannot be."""
        wanted = self._refused(name)
        if wanted is None or self._memory is None:
            return False
        models = self._models.values()
        idle = sorted(
            (each for each in models if each.is_resident and each.name != name),
            key=lambda each: (self._is_pinned(each), each.last_use),
        )
        leaving = [each for each in self._leaving.values() if not each.is_admitted]
        freed = [held for each in leaving for held in self._held(each)]
        going: list[_Model] = []
        while not self._memory.would_fit(wanted, freed):
            if not idle:
                return False
            going.append(idle.pop(0))
            freed += self._held(going[-1])
        for model in going:
            self._withhold(model, f"{name} needs its memory")
        return True

    def _held(self, model: _Model) -> list[ResourceAllocation]:
        found = (
            self._manager.load_status(each.id)
            for each in self._monitor.version_states(model.name)
        )
        return [
            each.reserved
            for each in found
            if each is not None and each.reserved is not None
        ]

    def _is_pinned(self, model: _Model) -> bool:
        """Whether requests are being answered; its unload would wait for them."""
        serving = self._manager.serving_map
        for version in serving.versions(model.name):
            try:
                handle = serving.acquire_version(model.name, version)
            except NotFound:
                continue
            is_pinned = handle.num_pins > 1
            handle.release()
            if is_pinned:
                return True
        return False


def with_registered(
    name: str, states: Sequence[ServableState], registered: Sequence[int]
) -> Sequence[ServableState]:
    """Returns the states of a model's versions with those that are not loaded yet.

    They are in START, in the place of what they were before they were unloaded; one that
    failed to load shows that instead.
    """
    if not registered:
        return states
    kept = {
        each.id.version: each
        for each in states
        if each.id.version not in registered or each.error is not None
    }
    for version in registered:
        kept.setdefault(
            version,
            ServableState(
                ServableId(name, version),
                ManagerState.START,
                reason="registered; a request for the model loads it",
            ),
        )
    return [kept[version] for version in sorted(kept, reverse=True)]
