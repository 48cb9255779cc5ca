"""The reports of servers, and the routes that follow: values and pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfs.hosted.fleet import Fleet
from tfs.hosted.fleet_edits import read_config
from tfs.hosted.sightings import ModelSighting, ReplicaSighting
from tfs.proto.tensorflow_serving.apis import get_model_status_pb2
from tfs.proto.tensorflow_serving.config import model_server_config_pb2
from tfs.proto.tfs.v1 import admin_service_pb2

_States = get_model_status_pb2.ModelVersionStatus


@dataclass(frozen=True, slots=True)
class JobReport:
    """What a server said in its last answer. Immutable.

    Attributes:
        started_s: When its process started; a new process does not know what the one
            before was told.
        models: How each of them fares; without generations.
        version_bytes: How much the largest version of each model takes there.
        request_s: How long the requests of each model took, all together.
        at_s: When it answered.

    """

    started_s: float = 0.0
    models: Mapping[str, ReplicaSighting] = field(default_factory=dict)
    version_bytes: Mapping[str, int] = field(default_factory=dict)
    # Changes all the time, and is no reason to look again.
    request_s: Mapping[str, float] = field(default_factory=dict, compare=False)
    at_s: float = field(default=0.0, compare=False)

    def answers(self, name: str) -> bool:
        """Whether a model answers requests that name no version."""
        seen = self.models.get(name)
        return seen is not None and seen.primary is not None


def report_of(
    reply: admin_service_pb2.ListModelsResponse, at_s: float = 0.0
) -> JobReport:
    """Returns the report in a reply of AdminService.ListModels, that came at ``at_s``."""
    version_bytes = {}
    for model in reply.models:
        taken = [
            max(each.memory.reserved_bytes, each.memory.resident_bytes)
            for each in model.versions
        ]
        if any(taken):
            version_bytes[model.name] = max(taken)
    return JobReport(
        reply.server.started_s,
        {each.name: _sighting(each) for each in reply.models},
        version_bytes,
        {each.name: each.request_s for each in reply.models},
        at_s,
    )


def _sighting(model: admin_service_pb2.ModelReport) -> ReplicaSighting:
    primary = model.primary if model.HasField("primary") else None
    if model.residency == admin_service_pb2.ModelReport.REGISTERED:
        # Whether requests have it loaded now or not: there is nothing to wait for.
        known = _versions(model, _States.START, _States.LOADING, _States.AVAILABLE)
        failed = [each.error.message for each in model.versions if each.error.code]
        return ReplicaSighting(0, primary, known, (), None, failed[0] if failed else "")
    newer = [each.error for each in model.versions if each.version > (primary or -1)]
    said = [error.message for error in (model.error, *newer) if error.code]
    runs = model.canary.phase == admin_service_pb2.CanaryReport.RUNNING
    return ReplicaSighting(
        0,
        primary,
        _versions(model, _States.AVAILABLE),
        _versions(model, _States.START, _States.LOADING),
        model.canary.canary.version if runs else None,
        said[0] if said else "",
    )


def _versions(model: admin_service_pb2.ModelReport, *states: int) -> tuple[int, ...]:
    return tuple(
        sorted(
            each.version
            for each in model.versions
            if each.state in states and not each.error.code
        )
    )


def routes_of(
    fleet: Fleet,
    reports: Mapping[str, JobReport],
    silent: Mapping[str, JobReport],
) -> dict[str, tuple[str, ...]]:
    """Returns the addresses that answer for each model, even where it has no place.

    For a model that no server reports, these are the ones that answered for it in their
    last report. If one of them is merely slow to report, it takes the request; if it is
    gone, the request fails as it would have anyway.

    Args:
        fleet: What is wanted.
        reports: The reports of the servers that answered the last question, by address.
        silent: The last reports of those that did not answer it, unless they are given
            up.

    """
    addresses = [each for job in fleet.jobs.values() for each in job.addresses]

    def said(by: Mapping[str, JobReport], name: str) -> tuple[str, ...]:
        return tuple(
            each for each in addresses if each in by and by[each].answers(name)
        )

    return {name: said(reports, name) or said(silent, name) for name in fleet.models}


def config_of(
    fleet: Fleet, names: tuple[str, ...]
) -> model_server_config_pb2.ModelServerConfig:
    """Returns the config that a server is told to serve."""
    config = model_server_config_pb2.ModelServerConfig()
    config.model_config_list.SetInParent()
    for name in names:
        config.model_config_list.config.append(read_config(fleet.models[name]))
    return config


def sightings_of(
    fleet: Fleet, reports: Mapping[str, tuple[JobReport, bool]]
) -> dict[str, ModelSighting]:
    """Returns how each model fares on the servers that have it.

    Args:
        fleet: What is wanted.
        reports: The reports of the servers that answer, and whether each of them serves
            what it should by now.

    """
    seen: dict[str, dict[str, ReplicaSighting]] = {name: {} for name in fleet.models}
    for address, (report, is_current) in reports.items():
        for name, each in report.models.items():
            model = fleet.models.get(name)
            replicas = seen.setdefault(name, {})
            replicas[address] = ReplicaSighting(
                model.generation if model is not None and is_current else 0,
                each.primary,
                each.versions,
                each.coming,
                each.canary,
                each.problem,
            )
    return {name: ModelSighting(each) for name, each in seen.items()}


def measured(reports: Mapping[str, JobReport]) -> dict[str, int]:
    """Returns the most memory that a version of each model takes on any server."""
    most: dict[str, int] = {}
    for report in reports.values():
        for name, size in report.version_bytes.items():
            most[name] = max(most.get(name, 0), size)
    return most
