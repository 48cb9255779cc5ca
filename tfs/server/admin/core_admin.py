"""Operates a server: serves the requests of AdminService, on the thread for configs.

Decisions are made elsewhere (choices, ../config/running_config), and so are reports
(server_reports). This module applies both to the server core.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message

from tfs.core.clock import Clock
from tfs.core.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    ServingError,
    Unavailable,
    Unimplemented,
    serving_error,
)
from tfs.handlers.admin import Asked, Done
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.proto.tfs.v1 import model_config_pb2
from tfs.server.admin.choices import (
    PROMOTE,
    ROLLBACK,
    canary_override,
    note_on_rollback,
    problem_of_retried,
    promotion,
    rollback_target,
    versions_to_retry,
    with_traffic,
)
from tfs.server.admin.config_report import apply_reply
from tfs.server.admin.server_reports import ServerReports
from tfs.server.config.overrides import Override
from tfs.server.config.running_config import Origin, RunningConfig
from tfs.server.config.server_config import Message as ServerMessage
from tfs.server.config.server_config import parse_config_text
from tfs.server.config.waiting import ConfigOutcome
from tfs.server.core import ServerCore
from tfs.server.fleet_source import FleetSource
from tfs.server.messages import fill_error
from tfs.server.placing.version_probe import VersionProbe

log = logging.getLogger(__name__)

R = TypeVar("R")


class CoreAdmin:
    """Is an :data:`tfs.handlers.admin.Admin` over a server core. Thread-safe.

    Args:
        core: The core.
        clock: For the time of overrides.
        reports: Report the state of the server.
        fleet: Follows a fleet; None if the server takes its models from elsewhere.
        page: Returns where the page is, and the key.
        probe: Tries versions out; None if there is no such part.

    """

    def __init__(
        self,
        core: ServerCore,
        clock: Clock,
        reports: ServerReports,
        fleet: FleetSource | None = None,
        page: Callable[[], pb.GetPageResponse] = pb.GetPageResponse,
        probe: VersionProbe | None = None,
    ) -> None:
        self._core = core
        self._clock = clock
        self._reports = reports
        self._page = page
        self._fleet = fleet
        self._probe = probe
        # What is answered at once, on the thread for configs.
        self._told: Mapping[type[Message], Callable[[Any], Message]] = {
            pb.ListModelsRequest: lambda request: reports.models(
                request.models, request.include_stats, request.since
            ),
            pb.GetConfigRequest: lambda _: reports.config(),
            pb.LeaveFleetRequest: lambda _: self._leave_fleet(),
        }
        self._answers: Mapping[type[Message], Callable[[Any], None]] = {
            pb.ApplyConfigRequest: self._apply_config,
            pb.SetCanaryRequest: self._set_canary,
            pb.PromoteRequest: self._promote,
            pb.RollbackRequest: self._rollback,
            pb.ResetOverrideRequest: self._reset_override,
            pb.RetryLoadRequest: self._retry_load,
            pb.AspireRequest: self._aspire,
            pb.GetPageRequest: self._get_page,
            pb.ProbeRequest: self._try_version,
        }

    def __call__(self, asked: Asked[Any, Any]) -> None:
        """Does what the request asks for."""
        tell = self._told.get(type(asked.request))
        if tell is None:
            self._answers[type(asked.request)](asked)
        else:
            self._run(lambda: tell(asked.request), asked.done)

    def _get_page(self, asked: Asked[pb.GetPageRequest, pb.GetPageResponse]) -> None:
        asked.done(self._page())

    def _try_version(self, asked: Asked[pb.ProbeRequest, pb.ProbeResponse]) -> None:
        if self._probe is None:
            asked.done(Unimplemented("this server tries no versions out"))
        else:
            self._probe.start(asked.request, asked.done)

    # -- changing ----------------------------------------------------------------------

    def _apply_config(
        self, asked: Asked[pb.ApplyConfigRequest, pb.ApplyConfigResponse]
    ) -> None:
        request, done = asked.request, asked.done

        def read() -> ServerMessage:
            match request.WhichOneof("source"):
                case "config":
                    return request.config
                case "text":
                    return parse_config_text(request.text, request.text_name or "text")
            raise InvalidArgument(
                "the request holds no configuration; set its config or text"
            )

        self._core.config.apply(
            read,
            Origin.APPLY_CONFIG,
            f"ApplyConfig from {asked.caller}",
            lambda outcome: done(apply_reply(outcome)),
            deadline_s=asked.deadline_s,
            waits_for_all=True,
            validate_only=request.validate_only,
        )

    def _set_canary(
        self, asked: Asked[pb.SetCanaryRequest, pb.SetCanaryResponse]
    ) -> None:
        request, core = asked.request, self._core
        name = request.model
        canary = request.canary if request.HasField("canary") else None

        def make(running: RunningConfig) -> Override:
            return canary_override(
                running,
                name,
                canary,
                self._clock.wall_s(),
                core.served.primary(name),
            )

        def finish(outcome: pb.OverrideOutcome) -> pb.SetCanaryResponse:
            pinned = outcome.override.config.traffic
            if canary is None and pinned.HasField("primary"):
                outcome.notes.append(
                    f"version {pinned.primary} stays the primary, whatever versions come, "
                    f"until tfs promote {name} VERSION or tfs config reset {name}"
                )
            return pb.SetCanaryResponse(outcome=outcome)

        def restart() -> None:
            if canary is not None:
                # Setting a rejected trial again starts it anew, even if nothing else
                # changes.
                self._core.served.restart_trial(name)

        self._override(
            asked,
            make,
            finish,
            then=restart,
        )

    def _promote(self, asked: Asked[pb.PromoteRequest, pb.PromoteResponse]) -> None:
        request, core = asked.request, self._core
        name = request.model
        chosen: list[int] = []

        def make(running: RunningConfig) -> Override:
            version = promotion(
                running,
                name,
                request.version if request.HasField("version") else None,
                self._rejected(running, name),
                core.served.available(name),
                force=request.force,
            )
            chosen.append(version)
            return self._pin(running, name, version, PROMOTE)

        self._override(
            asked,
            make,
            lambda outcome: pb.PromoteResponse(outcome=outcome, version=chosen[0]),
        )

    def _rollback(self, asked: Asked[pb.RollbackRequest, pb.RollbackResponse]) -> None:
        request, core = asked.request, self._core
        name = request.model
        chosen: list[int] = []
        notes: list[str] = []

        def make(running: RunningConfig) -> Override | None:
            if request.end:
                _check_rolled_back(running, name)
                return None
            running.model(name)
            states = core.version_states(name)
            version = rollback_target(
                name,
                request.version if request.HasField("version") else None,
                core.served.primary(name),
                core.sources.versions_at_hand(
                    name, running.effective.models[name].base_path
                ),
                core.served.available(name),
                [state.id.version for state in states],
                rejected := self._rejected(running, name),
            )
            chosen.append(version)
            if version in rejected:
                notes.append(f"version {version} was rejected ({rejected[version]})")
            if not request.HasField("version"):
                notes.append(note_on_rollback(name, core.served.primary(name), states))
            return self._pin(running, name, version, ROLLBACK)

        def finish(outcome: pb.OverrideOutcome) -> pb.RollbackResponse:
            outcome.notes.extend(filter(None, notes))
            reply = pb.RollbackResponse(outcome=outcome)
            if chosen:
                reply.version = chosen[0]
            elif outcome.model.HasField("primary"):
                reply.version = outcome.model.primary
            return reply

        self._override(
            asked,
            make,
            finish,
            waits=not request.end,
        )

    def _reset_override(
        self, asked: Asked[pb.ResetOverrideRequest, pb.ResetOverrideResponse]
    ) -> None:
        name, served = asked.request.model, self._core.served
        before: list[int | None] = []

        def make(running: RunningConfig) -> None:
            if name not in running.overrides:
                running.model(name)
            before.append(served.primary(name))

        def finish(outcome: pb.OverrideOutcome) -> pb.ResetOverrideResponse:
            now, then = served.primary(name), before[0]
            if now is not None and then is not None and now != then:
                outcome.notes.append(
                    f"version {now} answers requests that name no version; version "
                    f"{then} did before"
                )
            return pb.ResetOverrideResponse(outcome=outcome)

        self._override(
            asked,
            make,
            finish,
        )

    def _retry_load(
        self, asked: Asked[pb.RetryLoadRequest, pb.RetryLoadResponse]
    ) -> None:
        request, core = asked.request, self._core
        name = request.model

        def choose() -> list[int]:
            self._core.config.require_running().model(name)
            wanted = request.version if request.HasField("version") else None
            failed = core.failed_versions(name)
            return versions_to_retry(
                name, wanted, failed, core.version_states(name), core.problem(name)
            )

        def begin(chosen: list[int] | ServingError) -> None:
            if isinstance(chosen, ServingError):
                asked.done(chosen)
                return

            def finish(error: ServingError | None) -> None:
                self._run(lambda: self._retried(name, chosen, error), asked.done)

            if request.validate_only:
                reply = pb.RetryLoadResponse(versions=chosen)
                reply.status.SetInParent()
                reply.notes.append("it could be done; nothing was tried")
                asked.done(reply)
                return
            log.info("event=retry_asked servable=%s by=%s", name, asked.caller)
            core.try_again(name, frozenset(chosen), asked.deadline_s, finish)

        self._run(choose, begin)

    def _aspire(self, asked: Asked[pb.AspireRequest, pb.AspireResponse]) -> None:
        """Puts what a fleet wants in force; answers when it is, and on disk."""
        request, done = asked.request, asked.done

        def apply(refused: ServingError | None) -> None:
            if refused is not None:
                done(refused)
                return
            self._core.config.apply(
                lambda: request.config,
                Origin.FLEET,
                f"message {request.claim.sequence} of {request.claim.name}",
                keep,
            )

        def keep(outcome: ConfigOutcome) -> None:
            if outcome.is_applied or outcome.error is None:
                self._run(note, done)
            else:
                done(outcome.error)

        def note() -> pb.AspireResponse:
            self._of_fleet().note(request)
            return pb.AspireResponse()

        self._run(lambda: self._of_fleet().admit(request), apply)

    def _leave_fleet(self) -> pb.LeaveFleetResponse:
        return pb.LeaveFleetResponse(claim=self._of_fleet().leave())

    def _of_fleet(self) -> FleetSource:
        if self._fleet is None:
            raise FailedPrecondition(
                "this server takes its models from its own configuration; start it with "
                "--source=rpc to have a fleet say what it serves"
            )
        return self._fleet

    def _retried(
        self, name: str, versions: Sequence[int], error: ServingError | None
    ) -> pb.RetryLoadResponse:
        """Returns the outcome for versions that were tried again."""
        reply = pb.RetryLoadResponse(versions=versions)
        problem = problem_of_retried(versions, self._core.version_states(name))
        late = error if isinstance(error, DeadlineExceeded) else None
        fill_error(reply.status, late or problem)
        running = self._core.config.require_running()
        if name in running.effective.models:
            reply.model.CopyFrom(self._reports.model(running, name))
        return reply

    def _rejected(self, running: RunningConfig, name: str) -> Mapping[int, str]:
        """Returns why versions of a model were rejected, by version.

        The trial that runs counts more than one of the same version before it.
        """
        served = self._core.served
        settings = running.model(name)
        rejected = dict(served.rejected(settings))
        trial = served.trial(name)
        if trial is not None and not trial.rejected:
            rejected.pop(trial.settings.version, None)
        return rejected

    def _pin(
        self, running: RunningConfig, name: str, version: int, made_by: str
    ) -> Override:
        traffic = model_config_pb2.Traffic(primary=version)
        return with_traffic(running, name, traffic, made_by, self._clock.wall_s())

    def _override(
        self,
        asked: Asked[Any, R],
        make: Callable[[RunningConfig], Override | None],
        finish: Callable[[pb.OverrideOutcome], R],
        *,
        waits: bool = False,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Makes, or drops, the override of the model that the request names."""
        core, request = self._core, asked.request
        before, name = core.config.running, request.model
        method = type(request).__name__.removesuffix("Request")

        def finished(outcome: ConfigOutcome) -> None:
            if outcome.error is not None and not outcome.is_applied:
                asked.done(outcome.error)
                return
            if outcome.is_applied:
                then()
            self._run(lambda: finish(self._outcome(name, before, outcome)), asked.done)

        core.config.override(
            name,
            make,
            f"{method} from {asked.caller}",
            finished,
            waits=waits,
            deadline_s=asked.deadline_s,
            validate_only=request.validate_only,
        )

    def _outcome(
        self, name: str, before: RunningConfig | None, outcome: ConfigOutcome
    ) -> pb.OverrideOutcome:
        running = self._core.config.require_running()
        override = running.overrides.get(name)
        old = None if before is None else before.overrides.get(name)
        notes = list(outcome.notes)
        if outcome.error is not None:
            notes.append(f"in force, but: {outcome.error.message}")
        reply = pb.OverrideOutcome(changed=override != old, notes=notes)
        if override is not None:
            reply.override.CopyFrom(self._reports.override(running, name, override))
        if name in running.effective.models:
            reply.model.CopyFrom(self._reports.model(running, name))
        return reply

    def _run(self, work: Callable[[], R], done: Done[R]) -> None:
        """Runs ``work`` on the thread for configs; ``done`` gets its result or error."""

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
    override = running.overrides.get(name)
    if override is None:
        running.model(name)
        raise FailedPrecondition(f"{name} is not rolled back: it has no override")
    if override.made_by not in (ROLLBACK, ""):
        raise FailedPrecondition(
            f"{name} is not rolled back: its override was made by {override.made_by}; "
            f"tfs config reset {name} drops it"
        )
