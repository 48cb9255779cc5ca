"""The config in force, and how it changes.

Validate first, commit last: a config that is refused changes nothing. One that is
accepted is in force at once, and the caller is told when its new models answer, or why
they will not. A newer config supersedes one that is still waited for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from tfs.core.clock import Clock
from tfs.core.errors import (
    FailedPrecondition,
    ServingError,
    Unavailable,
    serving_error,
)
from tfs.core.executor import Executor
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.proto.tfs.v1.model_config_pb2 import Validation
from tfs.server.config.overrides import Override, OverridesFile
from tfs.server.config.running_config import (
    Base,
    Origin,
    RunningConfig,
    changes,
    laid_over,
)
from tfs.server.config.server_config import (
    Message,
    ServerConfig,
    all_of,
    check_change,
    check_kind_change,
    check_platform,
    read_models,
)
from tfs.server.config.waiting import (
    ConfigOutcome,
    ConfigWaiters,
    OnOutcome,
    Waiter,
)
from tfs.server.messages import fill_error
from tfs.server.model_settings import ModelSettings, RuntimeSettings

log = logging.getLogger(__name__)

_ONLY_CHECKED: Final = "it could be done; it was only checked, nothing was changed"

Commit = Callable[[RunningConfig | None, RunningConfig], None]
"""Makes a server follow the second config in place of the first; it does not fail."""


class ConfigInForce:
    """The config that a server follows, and its changes. Thread-safe.

    ``apply`` and ``override`` never block: one thread, the executor's, changes configs,
    and that, not a lock, orders the changes. ``begin`` reads the state directory.
    Everybody may read at any time.

    Args:
        executor: An executor of one thread, which changes configs. Owned by the caller.
        clock: Tells when configs came.
        platforms: Names of the existing platforms.
        overrides_file: Keeps the overrides.
        commit: Makes a config take effect, on the thread that changes configs, after it
            can be read here.
        waiters: Tells callers about the outcome of a config.
        on_waiting: Called when somebody has begun to wait.

    Attributes:
        executor: As given; other slow work for configs may run there.
        overrides_file: Keeps the overrides.
        running: The config in force; None before the start.
        refusal: The last config that was refused since the base was accepted; None if
            none was.
        file_problem: Why the config file cannot be read now; "" if it can, or there is
            none.

    """

    def __init__(
        self,
        *,
        executor: Executor,
        clock: Clock,
        platforms: Collection[str],
        overrides_file: OverridesFile,
        commit: Commit,
        waiters: ConfigWaiters,
        on_waiting: Callable[[], None],
    ) -> None:
        self.executor = executor
        self.overrides_file = overrides_file
        self._clock = clock
        self._platforms = platforms
        self._put_in_force = commit
        self._waiters = waiters
        self._on_waiting = on_waiting
        # Written by the thread that changes configs, read by anybody.
        self.running: RunningConfig | None = None
        self.refusal: pb.RefusalReport | None = None
        self.file_problem = ""
        self._first_origin = Origin.CONFIG_FILE  # the kind that survives a restart

    def check(self, config: ServerConfig) -> None:
        """Checks that the server has what the config asks for.

        Raises:
            InvalidArgument: A platform is not there.

        """
        for settings in config.models.values():
            check_platform(settings, self._platforms)

    def require_running(self) -> RunningConfig:
        """Returns the config in force.

        Raises:
            Unavailable: There is none yet.

        """
        running = self.running
        if running is None:
            raise Unavailable("the server is starting", retry_after_s=1.0)
        return running

    @property
    def models(self) -> Mapping[str, ModelSettings]:
        """The models in force, by name: another object after every change."""
        running = self.running
        return {} if running is None else running.effective.models

    def runtime_settings(self, name: str) -> RuntimeSettings:
        """Returns where and how a model should run, for the code that makes its loader."""
        settings = self.models.get(name)
        return RuntimeSettings() if settings is None else settings.runtime

    def validation_settings(self, name: str) -> Validation | None:
        """Returns what a model's versions are compared by before they serve."""
        settings = self.models.get(name)
        return None if settings is None else settings.validation

    def begin(self, config: ServerConfig, origin: Origin, path: str = "") -> None:
        """Puts the first config in force, with overrides laid over it; starts no thread.

        Overrides that cannot be read, or that make the config invalid, are not in
        force, and ``GetConfig`` says so.

        Raises:
            InvalidArgument: A platform is not there.

        """
        self.check(config)
        overrides = self.overrides_file.read()
        self._first_origin = origin
        base = Base(config, origin, path, self._clock.wall_s())
        running = laid_over(base, overrides, self._platforms)
        for name, why in running.why_inactive.items():
            log.warning("event=override_inactive servable=%s why=%r", name, why)
        self._commit(running)
        log.info(
            "event=config_applied reason=start models=%d overridden=%s",
            len(running.effective.models),
            ",".join(sorted(running.active)) or "none",
        )

    def apply(
        self,
        read: Callable[[], Message],
        origin: Origin,
        reason: str,
        on_done: OnOutcome,
        *,
        path: str = "",
        deadline_s: float | None = None,
        waits_for_all: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Makes a config the base, with overrides laid over it; returns at once.

        Args:
            read: Returns the config, or raises an error if it cannot be read. Called on
                the thread that changes configs: text of many models takes a second.
            origin: Where it came from.
            reason: The reason, for the log.
            on_done: Takes the outcome, once, on any thread: when the config was refused
                (nothing has changed), when all models that are waited for answer or
                have failed (the config stays), when a newer config supersedes it, or
                shortly before the deadline. A fleet, which asks how its models fare,
                is told as soon as the config is in force.
            path: The file that it came from; "" for none.
            deadline_s: Monotonic; None waits as long as it takes.
            waits_for_all: Whether to wait for all models, and for everything that
                follows for changed ones; otherwise only for models that were not
                configured before, as in TensorFlow Serving, and for changed ones of
                which no version answered.
            validate_only: Whether to stop after validation.

        """

        def refuse(error: ServingError, models: Sequence[pb.ModelOutcome] = ()) -> None:
            if not validate_only:
                self._note_refusal(origin, path, error)
            on_done(ConfigOutcome(error, False, models))

        def work() -> None:
            try:
                running = self.require_running()
                self._check_origin(origin)
                message = read()
                check_kind_change(message)
                settings, errors = read_models(
                    message, self._platforms, running.base.config
                )
                if errors:
                    refuse(all_of(errors), _wrong(errors, running))
                    return
                config = ServerConfig(settings, message)
                base = Base(config, origin, path, self._clock.wall_s())
                new = laid_over(base, running.overrides, self._platforms)
                check_change(running.effective, new.effective)
            except ServingError as error:
                refuse(error)
                return
            if validate_only:
                on_done(_only_checked(changes(running, new)))
                return
            waiter = None
            if origin is not Origin.FLEET:  # which asks how its models fare
                waiter = self._base_waiter(
                    running, new, origin, on_done, waits_for_all=waits_for_all
                )
            self._commit(new)
            self.refusal = None
            _log_applied(reason, running, new)
            if waiter is not None:
                self._wait(waiter, deadline_s)
                return
            on_done(ConfigOutcome(None, True))
            self._on_waiting()

        self._run(work, on_done)

    def _check_origin(self, origin: Origin) -> None:
        if self._first_origin is Origin.FLEET is not origin:
            raise FailedPrecondition(
                "this server takes its models from a fleet (--source=rpc): change "
                "them there, with tfs hosted"
            )

    def override(
        self,
        name: str,
        make: Callable[[RunningConfig], Override | None],
        reason: str,
        on_done: OnOutcome,
        *,
        waits: bool = False,
        deadline_s: float | None = None,
        validate_only: bool = False,
    ) -> None:
        """Sets one model's override, or drops it; the base stays as it is.

        Args:
            name: The model; configured or not.
            make: Makes the override from the running config; None drops it. Raises an
                error if it is not possible. Called on the thread that changes configs.
            reason: The reason, for the log.
            on_done: See ``apply``.
            waits: Whether to wait until the model answers as it says.
            deadline_s: Monotonic; None waits as long as it takes.
            validate_only: Whether to stop after validation.

        """

        def work() -> None:
            try:
                running = self.require_running()
                made = make(running)
                overrides = {k: v for k, v in running.overrides.items() if k != name}
                if made is not None:
                    overrides[name] = made
                new = laid_over(running.base, overrides, self._platforms, name)
                check_change(running.effective, new.effective)
                if not validate_only:
                    if overrides != running.overrides:
                        self.overrides_file.write(overrides)
                    self._commit(new)
            except ServingError as error:
                on_done(ConfigOutcome(error, False))
                return
            mine = tuple(each for each in changes(running, new) if each.model == name)
            if validate_only:
                on_done(_only_checked(mine))
                return
            log.info("event=override_changed servable=%s reason=%r", name, reason)
            models = frozenset((name,) if waits else ())
            notes = self._override_notes(new, name)
            waiter = Waiter(on_done, models, mine, is_base=False, notes=notes)
            self._wait(waiter, deadline_s)

        self._run(work, on_done)

    def _note_refusal(self, origin: Origin, path: str, error: ServingError) -> None:
        refusal = pb.RefusalReport(path=path, at_s=self._clock.wall_s())
        refusal.origin = origin.value  # type: ignore[assignment]  # same numbers
        fill_error(refusal.error, error)
        self.refusal = refusal  # whole, because other threads read it

    def _run(self, work: Callable[[], None], on_done: OnOutcome) -> None:
        def guarded() -> None:
            try:
                work()
            except Exception as error:
                log.exception("event=config_change_failed")
                problem = serving_error(error, "changing the configuration")
                on_done(ConfigOutcome(problem, False))

        try:
            self.executor.submit(guarded)
        except RuntimeError:
            on_done(ConfigOutcome(Unavailable("the server is shutting down"), False))

    def _base_waiter(
        self,
        before: RunningConfig,
        new: RunningConfig,
        origin: Origin,
        on_done: OnOutcome,
        *,
        waits_for_all: bool,
    ) -> Waiter:
        """Returns who waits for a new base; to be called before it is in force.

        That is for all models, and for everything that follows for changed ones. Or else
        only for those that are new or have not settled since they were (who asks again is
        not to be told that they answer), and those of which no version answers, because
        the change may correct them.
        """
        changed = changes(before, new)
        moved = [each for each in changed if each.change == pb.ModelOutcome.CHANGED]
        names = models = frozenset(new.effective.models)
        waited = frozenset(each.model for each in moved)
        if not waits_for_all:
            kept = before.effective.models.keys() & names
            failures = dict(self._waiters.failures(kept))
            waited = frozenset(
                each.model
                for each in moved
                if failures[each.model] != ""
                and not _CORRECT_NOTHING.issuperset(each.changed_fields)
            )
            unsettled = {name for name in kept if failures[name] is None}
            models = (names - kept) | unsettled | waited
        return Waiter(
            on_done,
            models,
            changed,
            is_base=True,
            changed=waited,
            notes=_base_notes(new, origin, self._first_origin),
        )

    def _commit(self, new: RunningConfig) -> None:
        before, self.running = self.running, new
        self._put_in_force(before, new)

    def _wait(self, waiter: Waiter, deadline_s: float | None) -> None:
        self._waiters.add(waiter, deadline_s)
        self._on_waiting()

    def _override_notes(self, new: RunningConfig, name: str) -> tuple[str, ...]:
        notes = []
        if name in new.overrides and not self.overrides_file.path:
            notes.append(
                "no --state_dir: this override lasts until the server restarts"
            )
        if name in new.why_inactive:
            notes.append(f"the override is not in force: {new.why_inactive[name]}")
        return tuple(notes)


def _log_applied(reason: str, before: RunningConfig, new: RunningConfig) -> None:
    models = new.effective.models
    added = ",".join(sorted(models.keys() - before.effective.models)) or "none"
    log.info(
        "event=config_applied reason=%r models=%d new=%s", reason, len(models), added
    )


def _only_checked(changed: Sequence[pb.ModelOutcome]) -> ConfigOutcome:
    for each in changed:
        fill_error(each.status, None)
    return ConfigOutcome(None, False, changed, (_ONLY_CHECKED,))


def _wrong(
    errors: Mapping[str, ServingError], running: RunningConfig
) -> list[pb.ModelOutcome]:
    known, kinds = running.effective.models, pb.ModelOutcome
    outcomes = []
    for name, error in sorted(errors.items()):
        change = kinds.CHANGED if name in known else kinds.ADDED
        outcomes.append(pb.ModelOutcome(model=name, change=change))
        fill_error(outcomes[-1].status, error)
    return outcomes


_CORRECT_NOTHING: Final = frozenset({"version_labels", "logging_config", "transition"})
"""Fields of a model's config that affect neither which versions are loaded nor how."""


_LASTS: Final = {
    Origin.COMMAND_LINE: "only what the command line says survives a restart; this "
    "configuration does not",
    Origin.CONFIG_FILE: "only the config file survives a restart; this configuration does "
    "not, and the next edit of the file replaces it",
    Origin.MODEL_REPOSITORY: "only the model repository survives a restart; this "
    "configuration does not, and the next model that comes or goes there replaces it",
}
"""Notes on a configuration that a restart would not bring back, by what the server starts
with."""


def _base_notes(new: RunningConfig, origin: Origin, first: Origin) -> tuple[str, ...]:
    notes = []
    if not origin.survives_restart:
        notes.append(_LASTS.get(first, _LASTS[Origin.CONFIG_FILE]))
    if new.active:
        listed = ", ".join(sorted(new.active))
        notes.append(f"overrides stay laid over the configuration of: {listed}")
    notes += [
        f"the override of {name} is not in force: {why}"
        for name, why in sorted(new.why_inactive.items())
        if name in new.effective.models
    ]
    return tuple(notes)
