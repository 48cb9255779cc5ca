"""Applies configs to what finds, loads and serves versions.

Validate first, commit last: a config that is refused changes nothing; one that is
accepted is in force at once, and whoever asked for it is told when its new models
answer or why they will not. A newer config supersedes one that is still waited for.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from managers.aspired_versions_manager import AspiredVersionsManager
from managers.load_status import LoadStatus
from managers.state_monitor import ServableStateMonitor
from managers.version_policy.action import TransitionPolicy
from managers.version_policy.availability_preserving import availability_preserving
from managers.version_policy.handing_over import handing_over
from managers.version_policy.resource_preserving import resource_preserving
from sources.adapter import Convert
from sources.fetching_adapter import FetchingSourceAdapter
from sources.file_system import FileSystemSourceOptions
from sources.scan import ServableToMonitor
from sources.storage import FileSystem
from sources.storage_path import StoragePath
from sources.storage_threads import StorageThreads
from tfs.core.clock import Clock
from tfs.core.errors import Aborted, ServingError, Unavailable, serving_error
from tfs.core.event_bus import EventAndTime, EventBus
from tfs.core.executor import Executor, ThreadExecutor
from tfs.core.loader import Loader
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.core.stats import Stats
from tfs.server.canary.rejections import CanaryRejections
from tfs.server.canary.trial import TrialParts
from tfs.server.config.config_outcome import ConfigOutcome, ModelOutcome
from tfs.server.config.config_waiters import ConfigWaiters, OnOutcome, Waiter
from tfs.server.config.overrides import Override, Overrides
from tfs.server.config.overrides_file import OverridesFile
from tfs.server.config.running_config import (
    Base,
    Change,
    ModelChange,
    Origin,
    RunningConfig,
    changes,
    check_platforms,
    first_running,
    resting_note,
    with_base,
    with_override,
)
from tfs.server.config.server_config import (
    Message,
    ServerConfig,
    all_of,
    check_kind_change,
    read_models,
)
from tfs.server.model_settings import ModelSettings, RuntimeSettings
from tfs.server.served_models import ServedModels
from tfs.server.source_chain import SourceChain

log = logging.getLogger(__name__)

_RECHECK_REST: Final = 10  # times as long as a look at all models took


@dataclass(frozen=True, slots=True)
class Refusal:
    """A config that was not accepted; the one before stayed. Immutable."""

    origin: Origin
    path: str
    at_s: float
    error: ServingError


class ServerCore:
    """Everything between a config and the serving map. Thread-safe.

    ``apply``, ``override`` and the readers never block on a load; ``start`` reads and
    writes the state directory; ``close`` blocks until every version is unloaded or the
    deadline passes. Configs are changed by one thread at a time, the executor's:
    that, and not a lock, orders them.

    Args:
        manager: Loads and unloads; not started yet.
        source_options: How base paths are watched; the servables come with configs.
        clock: What the source goes by.
        platforms: What makes a loader, by platform name; "" tells by content.
        bus: Carries the states of all versions.
        monitor: Follows the bus.
        stats: Read by ``counters``.
        post: Runs a function on the serving loop, soon.
        schedule: Runs a function on the serving loop at a time, by the clock; None
            leaves the deadlines of configs to the transport.
        executor: Of one thread; changes configs. None makes one.
        comparisons: Compares what canaries answer. None makes one of one thread.
        state_dir: Where overrides and rejections of canaries are kept; "" keeps them
            in memory.
        file_system: Where base paths lie; None is any that there is.
        fetching: Makes versions behind URLs local; None takes paths as they are.
        storage: Looks at base paths that may not answer; None is the source's thread,
            which then waits for them.

    """

    def __init__(
        self,
        *,
        manager: AspiredVersionsManager,
        source_options: FileSystemSourceOptions,
        clock: Clock,
        platforms: Mapping[str, Convert[StoragePath, Loader[object]]],
        bus: EventBus[ServableState],
        monitor: ServableStateMonitor,
        stats: Stats,
        post: Callable[[Callable[[], None]], None],
        schedule: Callable[[float, Callable[[], None]], None] | None = None,
        executor: Executor | None = None,
        comparisons: Executor | None = None,
        state_dir: str = "",
        file_system: FileSystem | None = None,
        fetching: FetchingSourceAdapter | None = None,
        storage: StorageThreads | None = None,
    ) -> None:
        self._manager = manager
        self._chain = SourceChain(
            manager,
            source_options,
            clock,
            platforms,
            on_looked=self._post_recheck,
            file_system=file_system,
            fetching=fetching,
            storage=storage,
        )
        self._platforms = self._chain.platforms
        self._clock = clock
        self._monitor = monitor
        self._stats = stats
        self._executor = executor or ThreadExecutor(1, "config", clock)
        self._comparisons = comparisons or ThreadExecutor(1, "canary", clock)
        self._rejections = CanaryRejections(state_dir, self._executor)
        self._served = ServedModels(
            manager.serving_map,
            monitor,
            TrialParts(post, self._comparisons, clock),
            rejections=self._rejections,
        )
        self.overrides_file = OverridesFile(state_dir)
        # Written by the thread that changes configs, read by anybody.
        self._running: RunningConfig | None = None
        self._refusal: Refusal | None = None
        self._config_file_problem = ""
        self._waiters = ConfigWaiters(
            monitor, self._chain.source, self._is_taken_in, clock, schedule
        )
        self._post = post
        self._schedule = schedule
        self._is_recheck_posted = False
        self._rechecks_after_s = 0.0
        self._on_change: list[Callable[[], None]] = []
        # Threads lent to the first loads, until those have ended. The loop's.
        self._lent = contextlib.ExitStack()
        self._is_lending = False
        manager.on_taken_in(self._post_recheck)
        self._subscription = bus.subscribe(self._note_state)

    @property
    def served(self) -> ServedModels:
        """The look-up for handlers."""
        return self._served

    @property
    def running(self) -> RunningConfig | None:
        """The config in force, None before the start."""
        return self._running

    @property
    def refusal(self) -> Refusal | None:
        """The last config that was not accepted since the base was."""
        return self._refusal

    @property
    def config_file_problem(self) -> str:
        """Why the config file cannot be read now; "" if it can, or there is none."""
        return self._config_file_problem

    @property
    def executor(self) -> Executor:
        """Where configs are changed: what else is slow about them may run there."""
        return self._executor

    def check(self, config: ServerConfig) -> None:
        """Checks that the server has what the config asks for.

        Raises:
            InvalidArgument: A platform is not there.

        """
        check_platforms(config, self._platforms)

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
        self._chain.start()

    def begin(self, config: ServerConfig, origin: Origin, path: str = "") -> None:
        """Applies the first config, overrides laid over it; starts no thread.

        Overrides that cannot be read, or make the config invalid, are not in force,
        and ``GetConfig`` says so.

        Raises:
            InvalidArgument: A platform is not there.

        """
        overrides = self.overrides_file.read()
        self._rejections.read()
        base = Base(config, origin, path, self._clock.wall_s())
        running = first_running(base, overrides, self._platforms)
        for name, why in running.why_inactive.items():
            log.warning("event=override_inactive servable=%s why=%r", name, why)
        self._drop_redundant(overrides, running)
        self._lent.enter_context(self._manager.lend_all_threads())
        self._is_lending = True
        self._commit(running)
        log.info(
            "event=config_applied reason=start models=%d overridden=%s",
            len(running.effective.models),
            ",".join(sorted(running.active)) or "none",
        )

    def close(self, deadline_s: float) -> bool:
        """Stops looking for versions, unloads all; returns whether it could."""
        self._executor.close(deadline_s)
        self._served.close()
        self._chain.close()
        done = self._manager.close(deadline_s)
        self._comparisons.close(deadline_s)
        self._subscription.close()
        self._waiters.abandon(Aborted("the server is shutting down"))
        return done

    def watch_repository(self, path: str) -> None:
        """Serves every model of a directory of models, as they come and go.

        Call it once, before ``start``. Each change of the directory is a new base,
        under the overrides as any other.
        """

        def take(models: Sequence[ServableToMonitor]) -> None:
            message = Message()
            message.model_config_list.SetInParent()
            for model in models:
                message.model_config_list.config.add(
                    name=model.name, base_path=model.base_path
                )
            self.apply(
                message,
                Origin.MODEL_REPOSITORY,
                f"models of {path}",
                _log_outcome,
                path=path,
            )

        self._chain.watch_repository(path, take)

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
        self.apply(
            message,
            Origin.RELOAD_REQUEST,
            reason,
            lambda outcome: on_done(outcome.error),
            deadline_s=deadline_s,
        )

    def apply(
        self,
        message: Message,
        origin: Origin,
        reason: str,
        on_done: OnOutcome,
        *,
        path: str = "",
        deadline_s: float | None = None,
        waits_for_all: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Makes a config the base, overrides laid over it; returns at once.

        Args:
            message: The config.
            origin: Where it came from.
            reason: For the log.
            on_done: Takes the outcome, once, on any thread: when the config was
                refused (nothing changed), when every model waited for answers or
                failed (the config stays), when a newer config supersedes it, or
                shortly before the deadline.
            path: The file it came from, "" for none.
            deadline_s: Monotonic; None waits as long as it takes.
            waits_for_all: Whether all models are waited for, or, as in TensorFlow
                Serving, those that were not configured before.
            validate_only: Whether to stop after validation.

        """

        def refuse(error: ServingError, models: tuple[ModelOutcome, ...] = ()) -> None:
            if not validate_only:
                self.note_refusal(origin, path, error)
            on_done(ConfigOutcome(error, False, models))

        def work() -> None:
            try:
                running = self._require_running()
                check_kind_change(message)
                settings, errors = self._read(message)
                if errors:
                    refuse(all_of(errors), _wrong(errors, running))
                    return
                config = ServerConfig(settings, message)
                base = Base(config, origin, path, self._clock.wall_s())
                new = with_base(running, base, self._platforms)
            except ServingError as error:
                refuse(error)
                return
            changed = changes(running, new)
            if validate_only:
                outcomes = tuple(ModelOutcome(each) for each in changed)
                on_done(ConfigOutcome(None, False, outcomes, ("nothing was changed",)))
                return
            self._drop_redundant(running.kept, new)
            stale = self._waiters.ended([each.name for each in changed])
            self._commit(new)
            self._refusal = None
            added = [each.name for each in changed if each.change is Change.ADDED]
            log.info(
                "event=config_applied reason=%r models=%d new=%s",
                reason,
                len(new.effective.models),
                ",".join(added) or "none",
            )
            self._wait(
                Waiter(
                    on_done,
                    frozenset(new.effective.models if waits_for_all else added),
                    changed,
                    stale,
                    is_base=True,
                    notes=_base_notes(new, origin),
                ),
                deadline_s,
            )

        self._run(work, on_done)

    def override(
        self,
        name: str,
        make: Callable[[RunningConfig], Override | None],
        reason: str,
        on_done: OnOutcome,
        *,
        waits_for_version: Callable[[RunningConfig], int | None] = lambda _: None,
        deadline_s: float | None = None,
        validate_only: bool = False,
    ) -> None:
        """Sets one model's override, or drops it; the base stays as it is.

        Args:
            name: The model; configured or not.
            make: Makes the override of the running config, None for none; raises
                what speaks against it. On the thread that changes configs.
            reason: For the log.
            on_done: As for ``apply``.
            waits_for_version: The version to wait for, None for not waiting.
            deadline_s: Monotonic; None waits as long as it takes.
            validate_only: Whether to stop after validation.

        """

        def work() -> None:
            try:
                running = self._require_running()
                override = make(running)
                new = with_override(running, name, override, self._platforms)
                changed = tuple(each for each in changes(running, new))
                if not validate_only:
                    if new.kept != running.kept:
                        self.overrides_file.write(new.kept)
                    stale = self._waiters.ended((name,))
                    self._commit(new)
            except ServingError as error:
                on_done(ConfigOutcome(error, False))
                return
            mine = tuple(each for each in changed if each.name == name)
            if validate_only:
                outcomes = tuple(ModelOutcome(each) for each in mine)
                on_done(ConfigOutcome(None, False, outcomes, ("nothing was changed",)))
                return
            log.info("event=override_changed servable=%s reason=%r", name, reason)
            version = waits_for_version(new)
            waits_for = frozenset((name,) if version is not None else ())
            self._wait(
                Waiter(
                    on_done,
                    waits_for,
                    mine,
                    stale,
                    is_base=False,
                    version=version,
                    notes=self._override_notes(new, name),
                ),
                deadline_s,
            )

        self._run(work, on_done)

    def note_refusal(self, origin: Origin, path: str, error: ServingError) -> None:
        """Remembers a config that was not accepted, for ``GetConfig``."""
        self._refusal = Refusal(origin, path, self._clock.wall_s(), error)

    def note_config_file(self, problem: str) -> None:
        """Remembers why the config file cannot be read, "" if it can be."""
        self._config_file_problem = problem

    def _run(self, work: Callable[[], None], on_done: OnOutcome) -> None:
        def guarded() -> None:
            try:
                work()
            except Exception as error:
                log.exception("event=config_change_failed")
                problem = serving_error(error, "changing the configuration")
                on_done(ConfigOutcome(problem, False))

        try:
            self._executor.submit(guarded)
        except RuntimeError:
            on_done(ConfigOutcome(Unavailable("the server is shutting down"), False))

    def _require_running(self) -> RunningConfig:
        running = self._running
        if running is None:
            raise Unavailable("the server is starting", retry_after_s=1.0)
        return running

    def _read(
        self, message: Message
    ) -> tuple[dict[str, ModelSettings], dict[str, ServingError]]:
        """Returns what is said of every model, and what is wrong with which."""
        models, errors = read_models(message)
        for name, settings in models.items():
            try:
                check_platforms(
                    ServerConfig({name: settings}, message), self._platforms
                )
            except ServingError as error:
                errors[name] = error
        return models, errors

    def _drop_redundant(self, before: Overrides, new: RunningConfig) -> None:
        """Takes overrides that say what the base says out of the file."""
        gone = sorted(before.keys() - new.kept.keys())
        if not gone:
            return
        log.info(
            "event=overrides_dropped servables=%s why=equal_to_base", ",".join(gone)
        )
        try:
            self.overrides_file.write(new.kept)
        except ServingError as error:
            log.warning("event=overrides_not_written problem=%s", error)

    def _commit(self, new: RunningConfig) -> None:
        """Makes ``new`` the running config; it was validated, so nothing fails."""
        models = new.effective.models
        self._chain.route(models)
        before, self._running = self._running, new
        self._served.apply(new.effective)
        for name, settings in models.items():
            if before is None or before.effective.models.get(name) != settings:
                self._manager.set_transition_policy(name, self._transition(settings))
        for name in () if before is None else before.effective.models.keys() - models:
            self._manager.set_transition_policy(name, None)
        self._chain.monitor(models.values())

    def _transition(self, settings: ModelSettings) -> TransitionPolicy:
        """Returns how versions of a model change."""
        if settings.keeps_resources:
            return resource_preserving
        pinned = settings.pinned_versions
        return handing_over(
            availability_preserving,
            functools.partial(self._served.awaited, settings.name),
            lambda version: version in pinned and not self._is_taken_in(),
        )

    def _is_taken_in(self) -> bool:
        """Whether what the config asks for shows in what is managed."""
        # In this order: the source's words reach the manager before it says so.
        return (
            self._chain.source.wait_applied(self._clock.now())
            and self._manager.has_taken_in_all
        )

    @property
    def models(self) -> Mapping[str, ModelSettings]:
        """The models in force, by name: another object after every change."""
        running = self._running
        return {} if running is None else running.effective.models

    # -- for handlers ----------------------------------------------------------------

    def version_states(self, name: str) -> Sequence[ServableState]:
        """Returns the states of a model's versions, newest version first."""
        return self._monitor.version_states(name)

    def load_status(self, servable_id: ServableId) -> LoadStatus | None:
        """Returns how a version's load goes or went; None if it is not managed."""
        return self._manager.load_status(servable_id)

    def problem(self, name: str) -> str:
        """Returns what is wrong with a model's base path, "" if nothing is."""
        return self._chain.problem(name)

    @property
    def repository_problem(self) -> str:
        """What is wrong with the directory of models, "" if nothing is."""
        return self._chain.source.repository_problem

    def versions_at_hand(self, name: str, base_path: str) -> Collection[int]:
        """Returns the versions under a model's base path; blocks on the disk.

        Of one that may not answer what was last seen there: no command waits for a
        store or a network mount.
        """
        return self._chain.versions_at_hand(name, base_path)

    def paths_at_hand(self, base_path: str) -> Mapping[int, str]:
        """Returns the version directories under a base path; blocks on the disk.

        Empty where it cannot be listed, or may not answer.
        """
        return self._chain.paths_at_hand(base_path)

    def runtime_settings(self, name: str) -> RuntimeSettings:
        """Returns where and how a model is to run, for whoever makes its loader."""
        running = self._running
        settings = None if running is None else running.effective.models.get(name)
        return RuntimeSettings() if settings is None else settings.runtime

    def counters(self) -> Mapping[str, float]:
        """Returns every counter, summed over its labels."""
        return self._stats.sums()

    def is_ready(self) -> bool:
        """Whether one model at least can answer, and all of the start have settled.

        What is added later loads beside what serves, and sends nobody away.
        """
        if self.is_starting():
            return False
        failures = self._waiters.failures(self._names())
        return any(
            not why and self._served.primary(name) is not None
            for name, why in failures.items()
            if why is not None
        )

    def is_starting(self) -> bool:
        """Whether models of the start are neither available nor have failed."""
        return self._is_lending and not self.has_settled()

    def has_settled(self) -> bool:
        """Whether every configured model is available or has failed."""
        return self._waiters.have_settled(self._names())

    def is_model_available(self, name: str) -> bool | None:
        """Whether requests that name no version are answered; None if not configured."""
        if name not in self._names():
            return None
        is_any = self._waiters.failures((name,))[name] == ""
        return is_any and self._served.primary(name) is not None

    # -- waiting -----------------------------------------------------------------------

    def recheck(self) -> None:
        """Tells whoever waits for a config if its models have settled. On the loop."""
        self._is_recheck_posted = False
        begun_s = self._clock.now()
        self._waiters.tell()
        for fn in self._on_change:
            fn()
        # A repository that is still empty has not had its first loads.
        if self._is_lending and self._names() and self.has_settled():
            self._is_lending = False
            self._lent.close()
        ended_s = self._clock.now()
        self._rechecks_after_s = ended_s + _RECHECK_REST * (ended_s - begun_s)

    def _wait(self, waiter: Waiter, deadline_s: float | None) -> None:
        self._waiters.add(waiter, deadline_s)
        self._post_recheck()

    def _names(self) -> Sequence[str]:
        running = self._running
        return () if running is None else tuple(running.effective.models)

    def _note_state(self, event: EventAndTime[ServableState]) -> None:
        state = event.event
        log.info(
            "event=servable_%s servable=%s reason=%r error=%s note=%r",
            state.manager_state.name.lower(),
            state.id.slashed,
            state.reason,
            state.error or "none",
            state.note,
        )
        if state.manager_state in (ManagerState.AVAILABLE, ManagerState.UNLOADING):
            self._served.refresh(state.id.name)
        self._post_recheck()

    def _post_recheck(self) -> None:
        """Asks for one recheck, however many changes a round of the loop brings.

        While a thousand models load, looking at all of them after each event would
        be most of what the loop does: it rests between two looks.
        """
        if self._is_recheck_posted:
            return
        self._is_recheck_posted = True
        if self._schedule is not None and self._clock.now() < self._rechecks_after_s:
            self._schedule(self._rechecks_after_s, self.recheck)
        else:
            self._post(self.recheck)

    def _override_notes(self, new: RunningConfig, name: str) -> tuple[str, ...]:
        notes = []
        if name in new.overrides and not self.overrides_file.path:
            notes.append(
                "no --state_dir: this override lasts until the server restarts"
            )
        if name in new.resting:
            notes.append(resting_note(new))
        if name in new.why_inactive:
            notes.append(f"the override is not in force: {new.why_inactive[name]}")
        return tuple(notes)


def _wrong(
    errors: Mapping[str, ServingError], running: RunningConfig
) -> tuple[ModelOutcome, ...]:
    known = running.effective.models
    return tuple(
        ModelOutcome(
            ModelChange(name, Change.CHANGED if name in known else Change.ADDED), error
        )
        for name, error in sorted(errors.items())
    )


def _base_notes(new: RunningConfig, origin: Origin) -> tuple[str, ...]:
    notes = []
    if not origin.survives_restart:
        notes.append(
            "only the config file survives a restart; this configuration does not"
        )
    if new.resting:
        notes.append(resting_note(new))
    if new.active:
        listed = ", ".join(sorted(new.active))
        notes.append(f"overrides stay laid over the configuration of: {listed}")
    return tuple(notes)


def _log_outcome(outcome: ConfigOutcome) -> None:
    if outcome.error is not None:
        log.error("event=config_problem problem=%s", outcome.error)
