"""Everything that finds, loads and serves versions, as one object that follows a config.

:class:`ConfigInForce` has the config and its changes; :class:`Readiness` knows whether
the configured models answer. This module has what both work on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from managers.aspired_versions_manager import AspiredVersionsManager
from managers.loading.load_admission import ResourceTracker
from managers.state_monitor import ServableStateMonitor
from managers.transition_policy import (
    Action,
    availability_preserving,
    resource_preserving,
)
from managers.versions.harness_state import HarnessSnapshot
from managers.versions.version import LoadStatus
from sources.servable_to_monitor import ServableToMonitor
from tfs.core.clock import Clock
from tfs.core.errors import Aborted, ServingError
from tfs.core.event_bus import EventAndTime
from tfs.core.executor import Executor, ThreadExecutor
from tfs.core.loop.serving_loop import LoopEntry
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.core.stats import Stats
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.server.canary.trial import TrialParts
from tfs.server.canary.trial_notes import TrialNotes
from tfs.server.config.config_in_force import ConfigInForce
from tfs.server.config.overrides import OverridesFile
from tfs.server.config.running_config import Origin, RunningConfig
from tfs.server.config.server_config import Message, ServerConfig
from tfs.server.config.waiting import (
    ConfigOutcome,
    ConfigWaiters,
    ModelLook,
    Recheck,
    Waiter,
)
from tfs.server.model_settings import ModelSettings
from tfs.server.model_sources import ModelSources, SourceParts
from tfs.server.readiness import Readiness
from tfs.server.residency import Residency, with_registered
from tfs.server.served_models import ServedModels

log = logging.getLogger(__name__)


class ServerCore:
    """Everything between a config and the serving map. Thread-safe.

    Nothing blocks on a load. ``start`` reads and writes the state directory. ``close``
    blocks until every version is unloaded or the deadline has passed.

    Args:
        manager: Loads and unloads; not started yet.
        sources: The parts that find versions.
        monitor: Knows the states of all versions.
        loop: The way onto the serving loop.
        clock: The clock that all parts go by.
        stats: Read by ``counters``.
        state_dir: Where overrides and what trials leave behind are kept; "" keeps
            them in memory.
        executor: An executor of one thread, which changes configs. None makes one.
        comparisons: Compares what canaries answer. None makes one of one thread.
        memory: What loads reserve from; None if there is no limit.

    Attributes:
        sources: The parts that find versions.
        config: The config in force, and its changes.
        readiness: Tells whether the server is ready.
        residency: Loads models on demand.

    """

    def __init__(
        self,
        *,
        manager: AspiredVersionsManager,
        sources: SourceParts,
        monitor: ServableStateMonitor,
        loop: LoopEntry,
        clock: Clock,
        stats: Stats,
        state_dir: str = "",
        executor: Executor | None = None,
        comparisons: Executor | None = None,
        memory: ResourceTracker | None = None,
    ) -> None:
        self._manager = manager
        self._executor = executor or ThreadExecutor(1, "config", clock)
        self._recheck = Recheck(
            self._look_at_all, self._tell_of_change, self._executor, loop, clock
        )
        self.residency = Residency(manager, monitor, self._executor, loop, memory)
        self.sources = ModelSources(
            manager,
            sources,
            self.residency,
            clock,
            on_looked=self._recheck.ask,
        )
        self._clock = clock
        self._monitor = monitor
        self._stats = stats
        self._comparisons = comparisons or ThreadExecutor(1, "canary", clock)
        self._notes = TrialNotes(state_dir, self._executor)
        self._served = ServedModels(
            manager.serving_map,
            monitor,
            TrialParts(loop.post, self._comparisons, clock),
            notes=self._notes,
            residency=self.residency,
        )
        self._waiters = ConfigWaiters(
            self._look, self.is_taken_in, clock, loop, self._executor
        )
        self.config = ConfigInForce(
            executor=self._executor,
            clock=clock,
            platforms=sources.platforms,
            overrides_file=OverridesFile(state_dir),
            commit=self._follow,
            waiters=self._waiters,
            on_waiting=self._recheck.ask,
        )
        self.readiness = Readiness(
            lambda: self.config.models, self._waiters, self._served
        )
        self._on_change: list[Callable[[], None]] = []
        manager.on_taken_in(self._recheck.ask)
        self._stop_listening = monitor.listen(self._note_state)

    @property
    def served(self) -> ServedModels:
        """The look-up for handlers."""
        return self._served

    def start(
        self,
        config: ServerConfig,
        origin: Origin = Origin.COMMAND_LINE,
        path: str = "",
    ) -> None:
        """Applies the first config and starts to load; returns at once.

        Raises:
            InvalidArgument: A platform is not there.

        """
        self.begin(config, origin, path)
        self._manager.start()
        self.sources.start()

    def begin(self, config: ServerConfig, origin: Origin, path: str = "") -> None:
        """Applies the first config, as ``config.begin``; starts no thread.

        Raises:
            InvalidArgument: A platform is not there.

        """
        self._notes.read()
        self.config.begin(config, origin, path)

    def close(self, deadline_s: float) -> bool:
        """Stops looking for versions and unloads all; returns whether that succeeded."""
        self._executor.close(deadline_s)
        self._served.close()
        self.sources.close()
        done = self._manager.close(deadline_s)
        self._comparisons.close(deadline_s)
        self._stop_listening()
        self.stop_waiting()
        return done

    def stop_waiting(self) -> None:
        """Tells all who wait for a config to take effect that the server shuts down."""
        self._waiters.abandon(Aborted("the server is shutting down"))

    def watch_repository(self, path: str) -> None:
        """Serves every model of a directory of models, as models come and go.

        Call it once, before ``start``. Each change of the directory makes a new base
        config, with the overrides laid over it as usual.
        """

        def take(models: Sequence[ServableToMonitor]) -> None:
            message = Message()
            message.model_config_list.SetInParent()
            for model in models:
                message.model_config_list.config.add(
                    name=model.name, base_path=model.base_path
                )
            self.config.apply(
                lambda: message,
                Origin.MODEL_REPOSITORY,
                f"models of {path}",
                _log_outcome,
                path=path,
            )

        self.sources.watch_repository(path, take)

    def on_change(self, fn: Callable[[], None]) -> None:
        """Calls ``fn`` on the serving loop after states or the config changed."""
        self._on_change.append(fn)

    # -- configs -------------------------------------------------------------------

    def apply_config(
        self,
        message: Message,
        reason: str,
        deadline_s: float | None,
        on_done: Callable[[ServingError | None], None],
    ) -> None:
        """Validates and applies a message; see ``handlers.reload_config``."""
        self.config.apply(
            lambda: message,
            Origin.RELOAD_REQUEST,
            reason,
            lambda outcome: on_done(outcome.error),
            deadline_s=deadline_s,
        )

    def failed_versions(self, name: str) -> AbstractSet[int]:
        """Returns the versions of a model that ``try_again`` would try."""
        return self._manager.failed_versions(name)

    def try_again(
        self,
        name: str,
        versions: AbstractSet[int],
        deadline_s: float | None,
        on_done: Callable[[ServingError | None], None],
    ) -> None:
        """Tries failed versions again, including those that failed before they were loaded.

        Returns at once. ``on_done`` is called when all of it is over; shortly before
        the (monotonic) deadline it is called with what is still missing.
        """
        self._manager.try_again(name, versions)
        self.sources.source.say_again(name)
        names = frozenset((name,))
        waiter = Waiter(
            lambda outcome: on_done(outcome.error),
            names,
            (pb.ModelOutcome(model=name),),
            is_base=False,
            changed=names,
        )
        self._waiters.add(waiter, deadline_s)
        self._recheck.ask()

    def _follow(self, before: RunningConfig | None, new: RunningConfig) -> None:
        """Has all parts follow a config, which was validated, so that nothing fails."""
        if before is None:
            self.readiness.begin_start(self._manager.lend_all_threads())
        models = new.effective.models
        self._served.apply(new.effective)
        policy = self._transition
        for name, settings in models.items():
            old = before.effective.models.get(name) if before is not None else None
            if old != settings:
                self._manager.set_transition_policy(name, policy)
            if old is not None and old.validation != settings.validation:
                self._manager.try_again(name, self._manager.failed_versions(name))
        for name in () if before is None else before.effective.models.keys() - models:
            self._manager.set_transition_policy(name, None)
        new_ones = self.residency.set_models(
            [name for name, settings in models.items() if settings.is_on_demand]
        )
        # A fleet's message brings one of ten thousand models, and nobody waits for a look
        # at the others.
        is_reload = before is None or new.base.origin is not Origin.FLEET
        self.sources.monitor(
            models.values(), self._served.rejected, looks_at_all=is_reload
        )
        for name in () if before is None else new_ones:
            self.sources.source.say_again(name)

    def _transition(self, versions: Sequence[HarnessSnapshot]) -> Sequence[Action]:
        """Decides how versions of a model change, by the config as it is now.

        There is one policy for all models, and what it needs of a model is made at each
        call. Objects kept for each of tens of thousands of models made every garbage
        collection a long pause.
        """
        settings = self.config.models.get(versions[0].id.name) if versions else None
        if settings is None:
            return availability_preserving(versions)
        if not all(version.is_aspired for version in versions):
            versions = self._as_callers_mean(settings, versions)
        if settings.keeps_resources:
            return resource_preserving(versions)
        return availability_preserving(versions)

    def _as_callers_mean(
        self, settings: ModelSettings, versions: Sequence[HarnessSnapshot]
    ) -> Sequence[HarnessSnapshot]:
        """Returns the versions with what labels and the primary mean for them."""
        heirs = self._served.awaited(settings.name)
        needed = set(self._staying(settings, versions, heirs))
        if not settings.keeps_resources and not self.is_taken_in():
            needed |= settings.pinned_versions
        return [
            replace(
                version,
                heirs=frozenset(heirs.get(version.id.version, ())),
                is_needed=version.id.version in needed,
            )
            for version in versions
        ]

    def _staying(
        self,
        settings: ModelSettings,
        versions: Sequence[HarnessSnapshot],
        awaited: Mapping[int, Collection[int]],
    ) -> Collection[int]:
        """Returns the versions that answer until those can that the config asks for.

        A primary or a labelled version that is not there, a typing error perhaps, must
        not unload the version that answers. Where the old version is to go before the new
        one is loaded, it goes once there is a new one.
        """
        asked = {settings.primary, *settings.labelled_versions}
        kept = {
            old: heirs for old, heirs in awaited.items() if not asked.isdisjoint(heirs)
        }
        if kept and settings.keeps_resources:
            aspired = {v.id.version for v in versions if v.is_aspired}
            return {
                old
                for old, heirs in kept.items()
                if old not in aspired and aspired.isdisjoint(heirs)
            }
        return kept.keys()

    def is_taken_in(self) -> bool:
        """Whether everything that the config asks for is managed already."""
        # The order matters: what a source reports reaches the manager before the source
        # says that it has reported.
        return (
            self.sources.source.wait_applied(self._clock.now())
            and self._manager.has_taken_in_all
        )

    def _look(self, name: str) -> ModelLook:
        """Returns what is known of a model, for those who wait for it."""
        settings, source = self.config.models.get(name), self.sources.source
        return ModelLook(
            self._monitor.version_states(name),
            self._manager.failed_versions(name),
            source.problems().get(name, ()),
            source.at_hand(name),
            source.outlook(name),
            None if settings is None else settings.primary,
            self._served.primary(name),
            bool(self.residency.versions(name)),
        )

    # -- for handlers ----------------------------------------------------------------

    def version_states(self, name: str) -> Sequence[ServableState]:
        """Returns the states of a model's versions, newest version first."""
        states = self._monitor.version_states(name)
        return with_registered(name, states, self.residency.registered(name))

    def problem(self, name: str) -> str:
        """Returns why a model's base path yields no version (yet); "" if it yields one."""
        return self.sources.problem(name)

    def load_status(self, servable_id: ServableId) -> LoadStatus | None:
        """Returns how a version's load goes or went; None if it is not managed."""
        return self._manager.load_status(servable_id)

    def counters(self) -> Mapping[str, float]:
        """Returns every counter, summed over its labels."""
        return self._stats.sums()

    # -- what changes ------------------------------------------------------------------

    def _look_at_all(self) -> None:
        """Tells everybody who waits for a config to take effect."""
        self._waiters.tell()
        self.readiness.end_start()

    def _tell_of_change(self) -> None:
        """Tells everybody else who follows the states of models. On the loop."""
        for fn in self._on_change:
            fn()

    def _note_state(self, event: EventAndTime[ServableState]) -> None:
        state = event.event
        # Before the log, which may have to wait for a disk: until then requests are sent
        # to the version from before.
        if state.manager_state in (ManagerState.AVAILABLE, ManagerState.UNLOADING):
            self._served.refresh(state.id.name)
        self.residency.note_state(state)
        log.info(
            "event=servable_%s servable=%s reason=%r error=%s note=%r",
            state.manager_state.name.lower(),
            state.id.slashed,
            state.reason,
            state.error or "none",
            state.note,
        )
        self._recheck.ask()


def _log_outcome(outcome: ConfigOutcome) -> None:
    if outcome.error is not None:
        log_outcome(outcome.error)


def log_outcome(error: ServingError) -> None:
    """Logs why a config failed that nobody waits for, unless it was superseded."""
    level = logging.INFO if isinstance(error, Aborted) else logging.ERROR
    log.log(level, "event=config_problem problem=%s", error)
