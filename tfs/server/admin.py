"""Operates a server: what AdminService asks for, done on the thread for configs.

Deciding is elsewhere (canary_change, running_config), and so is writing reports
(admin_reports); here the two meet the server core.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from managers.resource_tracker import ResourceTracker
from tfs.core.clock import Clock
from tfs.core.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ServingError,
    Unavailable,
    serving_error,
)
from tfs.core.resources import MAIN, RAM_BYTES, Resource
from tfs.core.servable_state import ManagerState, ServableState
from tfs.core.stats import Stats
from tfs.handlers.admin import Done
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.proto.tfs.v1 import model_config_pb2
from tfs.server.admin_describe import Describe
from tfs.server.admin_reports import (
    apply_reply,
    base_report,
    canary_report,
    effective_text,
    fill_error,
    fill_load,
    label_reports,
    override_report,
    refusal_report,
    stats_report,
    version_report,
)
from tfs.server.canary.change import (
    PROMOTE,
    ROLLBACK,
    canary_override,
    promotion,
    rollback_target,
    with_traffic,
)
from tfs.server.config.config_outcome import ConfigOutcome
from tfs.server.config.overrides import Override
from tfs.server.config.running_config import (
    Origin,
    RunningConfig,
    require_configured,
    resting_note,
)
from tfs.server.config.server_config import Message, parse_config_text
from tfs.server.core import ServerCore
from tfs.server.memory.resident_memory import tree_resident_bytes

log = logging.getLogger(__name__)

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What is known of the server process. Immutable.

    Attributes:
        started_s: When it started, seconds since the epoch.
        tfs_version: Of this package.
        torch_version: Of torch.
        listeners: Address and offered services of each door.
        is_draining: Whether it takes no new requests.
        stats: What it counts.
        memory: What models may use together, and do; None: no limit.

    """

    started_s: float
    tfs_version: str
    torch_version: str
    listeners: Callable[[], Iterable[pb.ListenerReport]]
    is_draining: Callable[[], bool]
    stats: Stats
    memory: ResourceTracker | None = None


class CoreAdmin:
    """Implements :class:`tfs.handlers.admin.Admin` over a server core. Thread-safe.

    Args:
        core: The core.
        clock: For the time of overrides.
        facts: About the process.
        describers: Rooms that know more of a loaded version.

    """

    def __init__(
        self,
        core: ServerCore,
        clock: Clock,
        facts: ProcessFacts,
        describers: Sequence[Describe] = (),
    ) -> None:
        self._core = core
        self._clock = clock
        self._facts = facts
        self._describers = tuple(describers)

    # -- reading -----------------------------------------------------------------------

    def list_models(
        self, request: pb.ListModelsRequest, done: Done[pb.ListModelsResponse]
    ) -> None:
        """Reports models, their versions, and how they do."""
        self._run(lambda: self._list_models(request), done)

    def _list_models(self, request: pb.ListModelsRequest) -> pb.ListModelsResponse:
        running = self._running()
        names = sorted(set(request.models)) or sorted(running.effective.models)
        for name in names:
            require_configured(running, name)
        return pb.ListModelsResponse(
            server=self._server_report(request.include_stats),
            models=[
                self._model_report(running, name, request.include_stats)
                for name in names
            ],
            notes=[*self._refusal_notes(), *self._notes()],
        )

    def _refusal_notes(self) -> list[str]:
        refusal = self._core.config.refusal
        if refusal is None:
            return []
        return [
            f"the last configuration ({refusal.path or refusal.origin.name.lower()}) was "
            f"refused, the one before stays: {refusal.error.message}"
        ]

    def get_config(
        self, request: pb.GetConfigRequest, done: Done[pb.GetConfigResponse]
    ) -> None:
        """Reads the configuration back."""
        del request
        self._run(self._get_config, done)

    def _get_config(self) -> pb.GetConfigResponse:
        core, running = self._core, self._running()
        models = [
            self._model_report(running, name, False)
            for name in sorted(running.effective.models)
        ]
        reply = pb.GetConfigResponse(
            base=base_report(running.base),
            overrides=[
                self._override_report(running, name, override)
                for name, override in sorted(running.overrides.items())
            ],
            effective=running.effective.message,
            effective_text=effective_text(running, models),
            models=models,
            overrides_path=core.config.overrides_file.path,
            notes=self._notes(),
        )
        if core.config.refusal is not None:
            reply.last_refusal.CopyFrom(refusal_report(core.config.refusal))
        return reply

    def _notes(self) -> list[str]:
        file = self._core.config.overrides_file
        problems = (
            file.problem,
            file.obstacle,
            self._core.sources.source.repository_problem,
        )
        notes = [each for each in problems if each]
        if self._core.config.file_problem:
            notes.append(
                "the config file cannot be read, what it said last holds: "
                f"{self._core.config.file_problem}"
            )
        running = self._core.config.running
        if running is not None and running.resting:
            notes.append(resting_note(running))
        if not file.path:
            notes.append("no --state_dir: overrides last until the server restarts")
        return notes

    def _server_report(self, include_stats: bool) -> pb.ServerReport:
        facts = self._facts
        state = pb.ServerReport.SERVING
        if facts.is_draining():
            state = pb.ServerReport.DRAINING
        elif self._core.readiness.is_starting():
            state = pb.ServerReport.STARTING
        elif not self._core.readiness.is_ready():
            state = pb.ServerReport.NOT_SERVING
        report = pb.ServerReport(
            state=state,
            tfs_version=facts.tfs_version,
            torch_version=facts.torch_version,
            started_s=facts.started_s,
            listeners=facts.listeners(),
            resident_bytes=tree_resident_bytes(os.getpid()),
            stats=stats_report(facts.stats) if include_stats else (),
        )
        if facts.memory is not None:
            ram = Resource(MAIN, RAM_BYTES, 0)
            report.memory_limit_bytes = facts.memory.total[ram]
            report.memory_reserved_bytes = facts.memory.used[ram]
        return report

    def _model_report(
        self, running: RunningConfig, name: str, include_stats: bool
    ) -> pb.ModelReport:
        core = self._core
        settings = running.effective.models[name]
        states = core.version_states(name)
        paths = core.sources.paths_at_hand(settings.base_path)
        primary = core.served.primary(name)
        report = pb.ModelReport(
            name=name,
            base_path=settings.base_path,
            platform=settings.platform,
            labels=label_reports(settings.labels, core.served.labels(name), states),
            overridden=name in running.active,
        )
        for state in states:
            report.versions.append(
                self._version_report(
                    state, paths.get(state.id.version, ""), include_stats
                )
            )
        if primary is not None:
            report.primary = primary
        problem = core.problem(name)
        if problem:
            fill_error(report.error, NotFound(problem))
        record = core.served.trial(name)
        if record is not None:
            is_available = record.settings.version in _available(states)
            report.canary.CopyFrom(
                canary_report(
                    record, running, name, primary, is_available, include_stats
                )
            )
        if name in running.why_inactive:
            report.notes.append(
                f"its override is not in force: {running.why_inactive[name]}"
            )
        return report

    def _version_report(
        self, state: ServableState, path: str, include_stats: bool
    ) -> pb.VersionReport:
        report = version_report(state, path)
        status = self._core.load_status(state.id)
        if status is not None:
            fill_load(report, status, self._clock.now(), self._clock.wall_s())
        if state.manager_state is not ManagerState.AVAILABLE:
            return report
        try:
            handle = self._core.served.acquire(state.id.name, state.id.version, None)
        except ServingError:
            return report  # it went while we looked
        with handle as servable:
            for name in sorted(servable.signatures):
                method = servable.signatures[name].method.value
                report.signatures.add(name=name, method=method)
            for describe in self._describers:
                try:
                    describe(report, servable, include_stats)
                except Exception:
                    log.exception("event=describe_failed servable=%s", state.id.slashed)
        if report.HasField("placement"):
            settings = self._core.config.runtime_settings(state.id.name)
            report.placement.device = settings.device
        return report

    def _override_report(
        self, running: RunningConfig, name: str, override: Override
    ) -> pb.OverrideReport:
        is_persisted = bool(self._core.config.overrides_file.path)
        return override_report(running, name, override, is_persisted)

    # -- changing ----------------------------------------------------------------------

    def apply_config(
        self,
        request: pb.ApplyConfigRequest,
        caller: str,
        deadline_s: float | None,
        done: Done[pb.ApplyConfigResponse],
    ) -> None:
        """Makes a configuration the base."""

        def read() -> Message:
            match request.WhichOneof("source"):
                case "config":
                    return request.config
                case "text":
                    return parse_config_text(request.text, "text")
            raise InvalidArgument("the request holds no configuration")

        def apply(message: Message | ServingError) -> None:
            if isinstance(message, ServingError):
                done(apply_reply(ConfigOutcome(message, False)))
                return
            self._core.config.apply(
                message,
                Origin.APPLY_CONFIG,
                f"ApplyConfig from {caller}",
                lambda outcome: done(apply_reply(outcome)),
                deadline_s=deadline_s,
                waits_for_all=True,
                validate_only=request.validate_only,
            )

        # Not here, on the serving loop: text takes a second for a few thousand models.
        self._run(read, apply)

    def set_canary(
        self,
        request: pb.SetCanaryRequest,
        caller: str,
        deadline_s: float | None,
        done: Done[pb.SetCanaryResponse],
    ) -> None:
        """Puts a version on trial, changes the trial, or ends it."""
        name = request.model
        canary = request.canary if request.HasField("canary") else None

        def make(running: RunningConfig) -> Override:
            return canary_override(running, name, canary, self._clock.wall_s())

        def finish(outcome: pb.OverrideOutcome) -> pb.SetCanaryResponse:
            return pb.SetCanaryResponse(outcome=outcome)

        def restart() -> None:
            if canary is not None:
                # Whoever sets a rejected trial again means it.
                self._core.served.restart_trial(name)

        self._override(
            name,
            make,
            f"SetCanary from {caller}",
            request.validate_only,
            deadline_s,
            done,
            finish,
            then=restart,
        )

    def promote(
        self,
        request: pb.PromoteRequest,
        caller: str,
        deadline_s: float | None,
        done: Done[pb.PromoteResponse],
    ) -> None:
        """Makes a version the primary and ends its trial."""
        name, core = request.model, self._core
        chosen: list[int] = []

        def make(running: RunningConfig) -> Override:
            record = core.served.trial(name)
            version = promotion(
                running,
                name,
                request.version if request.HasField("version") else None,
                "" if record is None else record.rejected,
                _available(core.version_states(name)),
                force=request.force,
            )
            chosen.append(version)
            return self._pin(running, name, version, PROMOTE)

        self._override(
            name,
            make,
            f"Promote from {caller}",
            request.validate_only,
            deadline_s,
            done,
            lambda outcome: pb.PromoteResponse(outcome=outcome, version=chosen[0]),
        )

    def rollback(
        self,
        request: pb.RollbackRequest,
        caller: str,
        deadline_s: float | None,
        done: Done[pb.RollbackResponse],
    ) -> None:
        """Pins an older version as the primary, until ended."""
        name, core = request.model, self._core
        chosen: list[int] = []

        def make(running: RunningConfig) -> Override | None:
            if request.end:
                _check_rolled_back(running, name)
                return None
            require_configured(running, name)
            states = core.version_states(name)
            version = rollback_target(
                name,
                request.version if request.HasField("version") else None,
                core.served.primary(name),
                core.sources.versions_at_hand(
                    name, running.effective.models[name].base_path
                ),
                _available(states),
                [state.id.version for state in states],
            )
            chosen.append(version)
            return self._pin(running, name, version, ROLLBACK)

        def finish(outcome: pb.OverrideOutcome) -> pb.RollbackResponse:
            reply = pb.RollbackResponse(outcome=outcome)
            if chosen:
                reply.version = chosen[0]
            elif outcome.model.HasField("primary"):
                reply.version = outcome.model.primary
            return reply

        self._override(
            name,
            make,
            f"Rollback from {caller}",
            request.validate_only,
            deadline_s,
            done,
            finish,
            waits_for_version=lambda _: chosen[0] if chosen else None,
        )

    def reset_override(
        self,
        request: pb.ResetOverrideRequest,
        caller: str,
        deadline_s: float | None,
        done: Done[pb.ResetOverrideResponse],
    ) -> None:
        """Drops a model's override."""
        name = request.model

        def make(running: RunningConfig) -> None:
            if name not in running.kept:
                require_configured(running, name)

        self._override(
            name,
            make,
            f"ResetOverride from {caller}",
            request.validate_only,
            deadline_s,
            done,
            lambda outcome: pb.ResetOverrideResponse(outcome=outcome),
        )

    def _pin(
        self, running: RunningConfig, name: str, version: int, made_by: str
    ) -> Override:
        traffic = model_config_pb2.Traffic(primary=version)
        return with_traffic(running, name, traffic, made_by, self._clock.wall_s())

    def _override(
        self,
        name: str,
        make: Callable[[RunningConfig], Override | None],
        reason: str,
        validate_only: bool,
        deadline_s: float | None,
        done: Done[R],
        finish: Callable[[pb.OverrideOutcome], R],
        *,
        waits_for_version: Callable[[RunningConfig], int | None] = lambda _: None,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        core = self._core
        before = core.config.running

        def finished(outcome: ConfigOutcome) -> None:
            if outcome.error is not None and not outcome.is_applied:
                done(outcome.error)
                return
            if outcome.is_applied:
                then()
            self._run(lambda: finish(self._outcome(name, before, outcome)), done)

        core.config.override(
            name,
            make,
            reason,
            finished,
            waits_for_version=waits_for_version,
            deadline_s=deadline_s,
            validate_only=validate_only,
        )

    def _outcome(
        self, name: str, before: RunningConfig | None, outcome: ConfigOutcome
    ) -> pb.OverrideOutcome:
        running = self._running()
        override = running.overrides.get(name)
        kept = running.kept.get(name)
        old = None if before is None else before.kept.get(name)
        notes = list(outcome.notes)
        if outcome.error is not None:
            notes.append(f"in force, but: {outcome.error.message}")
        reply = pb.OverrideOutcome(changed=kept != old, notes=notes)
        if override is not None:
            reply.override.CopyFrom(self._override_report(running, name, override))
        if name in running.effective.models:
            reply.model.CopyFrom(self._model_report(running, name, False))
        return reply

    def _running(self) -> RunningConfig:
        running = self._core.config.running
        if running is None:
            raise Unavailable("the server is starting", retry_after_s=1.0)
        return running

    def _run(self, work: Callable[[], R], done: Done[R]) -> None:
        """Runs ``work`` on the thread for configs, and hands on what comes of it."""

        def guarded() -> None:
            try:
                reply = work()
            except Exception as error:
                if not isinstance(error, ServingError):
                    log.exception("event=admin_failed")
                done(serving_error(error, "AdminService"))
                return
            done(reply)

        try:
            self._core.config.executor.submit(guarded)
        except RuntimeError:
            done(Unavailable("the server is shutting down"))


def _check_rolled_back(running: RunningConfig, name: str) -> None:
    override = running.kept.get(name)
    if override is None:
        require_configured(running, name)
        raise FailedPrecondition(f"{name} is not rolled back: it has no override")
    if override.made_by not in (ROLLBACK, ""):
        raise FailedPrecondition(
            f"{name} is not rolled back: its override was made by {override.made_by}; "
            f"tfs config reset {name} drops it"
        )


def _available(states: Sequence[ServableState]) -> frozenset[int]:
    return frozenset(
        state.id.version
        for state in states
        if state.manager_state is ManagerState.AVAILABLE
    )
