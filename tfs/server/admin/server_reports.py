"""The one report on a server: itself, its models and their versions, as AdminService's messages.

``tfs status``, ``tfs config show`` and pages for people all read these messages. Those who ask
again and again get the models that fare otherwise than at an earlier look.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from managers.loading.load_admission import ResourceTracker
from tfs.core.clock import Clock
from tfs.core.errors import NotFound, ServingError
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.core.stats import Stats
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.server.admin.config_report import (
    base_report,
    effective_text,
    memory_bytes,
)
from tfs.server.admin.version_report import (
    FiguresOf,
    fill_load,
    fill_loaded,
    fill_stats,
    version_report,
)
from tfs.server.canary.trial import Trial
from tfs.server.config.overrides import Override
from tfs.server.config.running_config import RunningConfig
from tfs.server.core import ServerCore
from tfs.server.messages import fill_error, histogram
from tfs.server.model_settings import ModelSettings
from tfs.server.system.processes import tree_resident_bytes

log = logging.getLogger(__name__)

_LOADED: Final = "loaded"


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What is known of the server process. Immutable.

    Attributes:
        started_s: When it started, seconds since the epoch.
        tfs_version: Version of this package.
        torch_version: Version of torch.
        listeners: Address and offered services of each door.
        is_draining: Whether it takes no new requests.
        stats: What it counts.
        memory: How much memory all models may use together, and how much is reserved;
            None if there is no limit.
        problems: Returns what is wrong with the server, one sentence each.
        fill_version: Adds to the reports of a model and of one of its versions what its
            load and its requests showed.
        figures: Returns the counters of a model's version, by signature.
        fleet: Returns the fleet that it belongs to.

    """

    started_s: float
    tfs_version: str
    torch_version: str
    listeners: Callable[[], Iterable[pb.ListenerReport]]
    is_draining: Callable[[], bool]
    stats: Stats
    memory: ResourceTracker | None = None
    problems: Callable[[], Sequence[str]] = tuple
    fill_version: Callable[[ServableId, pb.ModelReport, pb.VersionReport], None] = (
        lambda _id, _model, _version: None
    )
    figures: FiguresOf = lambda _name, _version: {}
    fleet: Callable[[], pb.FleetClaim | None] = lambda: None


class ServerReports:
    """Reports on a server core. Thread-safe; may block, because it lists base paths.

    Args:
        core: The core.
        clock: For how long loads wait.
        facts: About the process.

    """

    def __init__(self, core: ServerCore, clock: Clock, facts: ProcessFacts) -> None:
        self._core = core
        self._clock = clock
        self._facts = facts
        self._history = ModelHistory(clock)

    def models(
        self, wanted: Iterable[str], include_stats: bool, since: int = 0
    ) -> pb.ListModelsResponse:
        """Returns the status of the server and of these models, or all if none is named.

        Of all, those are left out that have not changed since the revision ``since``.

        Raises:
            NotFound: One is not configured.

        """
        running = self._core.config.require_running()
        is_behind = not self._core.is_taken_in()  # must be read before anything else
        names, reply = sorted(set(wanted)), pb.ListModelsResponse()
        for name in names:
            running.model(name)
        if not names:
            looks = self._looks(running)
            changed, reply = self._history.changes(looks, since)
            # These have figures, which change all the time.
            loaded = [name for name, look in looks.items() if look is _LOADED]
            names = sorted({*changed, *loaded})
        reply.server.CopyFrom(self.server(include_stats))
        reply.models.extend(
            self.model(running, name, include_stats=include_stats) for name in names
        )
        reply.notes.extend([*self._refusal_notes(), *self.notes()])
        reply.behind = is_behind
        return reply

    def _looks(self, running: RunningConfig) -> dict[str, object]:
        """Returns what differs when the report of a model does, for each."""
        outlooks = self._core.residency.outlooks()
        problems, active = self._core.sources.source.problems(), running.active
        why_inactive = running.why_inactive
        return {
            name: (
                settings,
                name in active,
                why_inactive.get(name),
                outlooks[name],
                problems.get(name),
            )
            if name in outlooks
            else _LOADED
            for name, settings in running.effective.models.items()
        }

    def _refusal_notes(self) -> list[str]:
        refusal = self._core.config.refusal
        if refusal is None:
            return []
        origin = pb.ConfigOrigin.Name(refusal.origin)
        return [
            f"the last configuration ({refusal.path or origin.lower()}) was "
            f"refused, the one before stays: {refusal.error.message}"
        ]

    def config(self) -> pb.GetConfigResponse:
        """Returns the configuration, and the status of what runs."""
        core, running = self._core, self._core.config.require_running()
        models = [
            self.model(running, name) for name in sorted(running.effective.models)
        ]
        reply = pb.GetConfigResponse(
            base=base_report(running.base),
            overrides=[
                self.override(running, name, override)
                for name, override in sorted(running.overrides.items())
            ],
            effective=running.effective.message,
            effective_text=effective_text(running, models, self._facts.memory),
            models=models,
            overrides_path=core.config.overrides_file.path,
            notes=self.notes(),
        )
        if core.config.refusal is not None:
            reply.last_refusal.CopyFrom(core.config.refusal)
        return reply

    def notes(self) -> list[str]:
        """Returns what an operator should know of the server as a whole."""
        file = self._core.config.overrides_file
        problems = (
            file.problem,
            file.obstacle,
            self._core.sources.source.repository_problem,
        )
        notes = [*filter(None, problems), *self._facts.problems()]
        if self._core.config.file_problem:
            notes.append(
                "the config file cannot be read, what it said last holds: "
                f"{self._core.config.file_problem}"
            )
        if not file.path:
            notes.append("no --state_dir: overrides last until the server restarts")
        return notes

    def server(self, include_stats: bool = False) -> pb.ServerReport:
        """Returns the status of the process."""
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
            fleet=facts.fleet(),
        )
        if facts.memory is not None:
            used, total = memory_bytes(facts.memory)
            report.memory_limit_bytes, report.memory_reserved_bytes = total, used
        return report

    def model(
        self, running: RunningConfig, name: str, *, include_stats: bool = False
    ) -> pb.ModelReport:
        """Returns the status of a configured model and its versions."""
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
            report.request_s += sum(
                each.latency_s.total
                for found in self._facts.figures(name, state.id.version).values()
                for each in found
            )
            path = paths.get(state.id.version, "")
            version = self._version(state, path, include_stats)
            self._facts.fill_version(state.id, report, version)
            report.versions.append(version)
        is_resident = core.residency.is_resident(name)
        if is_resident is not None:
            kinds = pb.ModelReport.Residency
            report.residency = kinds.RESIDENT if is_resident else kinds.REGISTERED
        if primary is not None:
            report.primary = primary
        elif settings.primary is not None:
            report.notes.append(
                f"version {settings.primary} is the primary, and is not available: "
                "requests that name no version get NOT_FOUND"
            )
        problem = core.sources.problem(name)
        if problem:
            fill_error(report.error, NotFound(problem))
        trial = core.served.trial(name)
        if trial is not None:
            report.canary.CopyFrom(
                canary_report(
                    trial, settings, primary, states, include_latencies=include_stats
                )
            )
        if name in running.why_inactive:
            report.notes.append(
                f"its override is not in force: {running.why_inactive[name]}"
            )
        return report

    def _version(
        self, state: ServableState, path: str, include_stats: bool
    ) -> pb.VersionReport:
        report = version_report(state, path)
        status = self._core.load_status(state.id)
        if status is not None:
            fill_load(report, status, self._clock.now(), self._clock.wall_s())
        if state.manager_state is not ManagerState.AVAILABLE:
            return report
        try:
            handle = self._core.served.look_at(state.id.name, state.id.version, None)
        except ServingError:
            return report  # it was unloaded meanwhile
        with handle as servable:
            try:
                fill_loaded(report, servable)
                if include_stats:
                    fill_stats(report, servable, self._facts.figures)
            except Exception:
                log.exception("event=report_failed servable=%s", state.id.slashed)
        if report.HasField("placement"):
            settings = self._core.config.runtime_settings(state.id.name)
            report.placement.device = settings.device
        return report

    def override(
        self, running: RunningConfig, name: str, override: Override
    ) -> pb.OverrideReport:
        """Returns the override of a model, and whether it outlives a restart."""
        report = pb.OverrideReport(
            active=name in running.active,
            why_inactive=running.why_inactive.get(name, ""),
            persisted=bool(self._core.config.overrides_file.path),
        )
        report.MergeFrom(override)
        return report


def label_reports(
    wanted: Mapping[str, int],
    meant: Mapping[str, int],
    states: Sequence[ServableState],
) -> list[pb.LabelReport]:
    """Returns which versions labels mean now, and which ones they wait for."""
    available = {
        state.id.version
        for state in states
        if state.manager_state is ManagerState.AVAILABLE
    }
    reports = []
    for label in sorted(wanted):
        report = pb.LabelReport(label=label)
        version = meant.get(label)
        if version is not None and version in available:
            report.version = version
        if wanted[label] not in available:
            report.pending_version = wanted[label]
        reports.append(report)
    return reports


def stats_report(stats: Stats) -> list[pb.Stat]:
    """Returns every counter, gauge and histogram, by name and labels."""
    reports = [
        pb.Stat(name=name, labels=dict(labels), value=value)
        for name, labels, value in stats.counters()
    ]
    reports += [
        pb.Stat(name=name, labels=dict(labels), histogram=histogram(snapshot))
        for name, labels, snapshot in stats.histograms()
    ]
    return sorted(reports, key=lambda stat: (stat.name, sorted(stat.labels.items())))


def canary_report(
    trial: Trial,
    settings: ModelSettings,
    primary: int | None,
    states: Sequence[ServableState],
    *,
    include_latencies: bool,
) -> pb.CanaryReport:
    """Returns the state of a trial; ``states`` are those of the model's versions."""
    report = trial.report(include_latencies=include_latencies)
    version = report.canary.version
    if settings.canary is not None:
        report.canary.CopyFrom(settings.canary)
    if primary is not None and primary != version:
        report.primary = primary
    if report.phase == pb.CanaryReport.REJECTED:
        return report
    if hindrance := _hindrance(version, states):
        report.phase = pb.CanaryReport.WAITING
        report.reason = hindrance
    elif primary is None or primary == version:
        report.phase = pb.CanaryReport.WAITING
        report.reason = f"no version but {version} is available to compare with"
    else:
        report.phase = pb.CanaryReport.RUNNING
    return report


def _hindrance(version: int, states: Sequence[ServableState]) -> str:
    """Returns why a version cannot be requested; "" if it can."""
    state = next((each for each in states if each.id.version == version), None)
    if state is not None and state.manager_state is ManagerState.AVAILABLE:
        return ""
    if state is not None and state.error is not None:
        return f"version {version} is not available: {state.error.message}"
    return f"version {version} is not available yet"


_MOST_CHANGES: Final = (
    1000  # as many are reported well within the time that callers wait
)


class ModelHistory:
    """When each model was last seen to change. Thread-safe.

    Args:
        clock: Its time begins the count, so that no process repeats the revisions of
            another.

    """

    def __init__(self, clock: Clock) -> None:
        # Guards the next; leaf.
        self._lock = threading.Lock()
        self._first = self._revision = int(clock.wall_s() * 1e6)
        # The revision of its last change, and how it looked then; None: it was gone.
        self._seen: dict[str, tuple[int, object]] = {}

    def changes(
        self, looks: Mapping[str, object], since: int
    ) -> tuple[list[str], pb.ListModelsResponse]:
        """Notes how models look now, and returns the first that changed since a revision.

        With them comes what a reply says of them: the revisions, and the models that are
        not there any more. With 0, or a revision of another process, all have changed.
        """
        with self._lock:
            seen = self._seen
            for name, look in looks.items():
                if name not in seen or seen[name][1] != look:
                    self._note(name, look)
            for name in seen.keys() - looks.keys():
                if seen[name][1] is not None:
                    self._note(name, None)
            is_paged = since > 0
            if not self._first <= since <= self._revision:
                since = 0
            changed = []
            for name, (at, look) in reversed(seen.items()):
                if at <= since:
                    break
                if since or look is not None:
                    changed.append(name)
            changed.reverse()
            newest = revision = self._revision
            if is_paged and len(changed) > _MOST_CHANGES:
                changed = changed[:_MOST_CHANGES]
                revision = seen[changed[-1]][0]
        names = [name for name in changed if name in looks]
        gone = [name for name in changed if name not in looks]
        return names, pb.ListModelsResponse(
            revision=revision, since=since, gone=gone, newest=newest
        )

    def _note(self, name: str, look: object) -> None:
        self._seen.pop(name, None)  # the last to change comes last
        self._revision += 1
        self._seen[name] = self._revision, look
