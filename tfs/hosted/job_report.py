"""The reports of serving jobs, and the routes that follow: values and pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfs.hosted.controller import read_config
from tfs.hosted.fleet import Fleet
from tfs.hosted.fleet_store import ModelSighting
from tfs.proto.tensorflow_serving.config import model_server_config_pb2
from tfs.proto.tfs.v1 import admin_service_pb2


@dataclass(frozen=True, slots=True)
class JobReport:
    """What a serving job said in its last answer. Immutable.

    Attributes:
        started_s: When its process started; a new process does not know what the one
            before was told.
        base_paths: The base path of every model that it is configured to serve.
        answering: Models that answer requests which name no version.
        failing: What is wrong with models, by name: why they do not answer, or why
            nothing newer does.
        version_bytes: How much the largest version of each model takes there.

    """

    started_s: float = 0.0
    base_paths: Mapping[str, str] = field(default_factory=dict)
    answering: frozenset[str] = frozenset()
    failing: Mapping[str, str] = field(default_factory=dict)
    version_bytes: Mapping[str, int] = field(default_factory=dict)


def report_of(reply: admin_service_pb2.ListModelsResponse) -> JobReport:
    """Returns the report in a reply of AdminService.ListModels."""
    failing = {}
    version_bytes = {}
    for model in reply.models:
        answers = model.primary if model.HasField("primary") else -1
        newer = [each.error for each in model.versions if each.version > answers]
        said = [error.message for error in (model.error, *newer) if error.code]
        if said:
            failing[model.name] = said[0]
        taken = [
            max(each.memory.reserved_bytes, each.memory.resident_bytes)
            for each in model.versions
        ]
        if any(taken):
            version_bytes[model.name] = max(taken)
    return JobReport(
        reply.server.started_s,
        {each.name: each.base_path for each in reply.models},
        frozenset(each.name for each in reply.models if each.HasField("primary")),
        failing,
        version_bytes,
    )


def routes_of(
    fleet: Fleet,
    reports: Mapping[str, JobReport],
    silent: Mapping[str, JobReport],
) -> dict[str, tuple[str, ...]]:
    """Returns the addresses that answer for each model, even where it has no place.

    For a model that no job reports, these are the jobs that answered for it in their
    last report. If one of them is merely slow to report, it takes the request; if it is
    gone, the request fails as it would have anyway.

    Args:
        fleet: What is wanted.
        reports: The reports of the jobs that answered the last question.
        silent: The last reports of those that did not answer it, unless they are given
            up.

    """

    def said(by: Mapping[str, JobReport], name: str) -> tuple[str, ...]:
        return tuple(
            address
            for address in fleet.jobs
            if address in by and name in by[address].answering
        )

    return {name: said(reports, name) or said(silent, name) for name in fleet.models}


def sightings_of(
    fleet: Fleet, reports: Mapping[str, JobReport]
) -> dict[str, ModelSighting]:
    """Returns how each model fares: how many jobs answer for it, and what is wrong."""
    return {
        name: ModelSighting(
            sum(name in report.answering for report in reports.values()),
            "; ".join(
                f"{address}: {report.failing[name]}"
                for address, report in reports.items()
                if name in report.failing
            ),
        )
        for name in fleet.models
    }


def serves_as_told(
    report: JobReport, config: model_server_config_pb2.ModelServerConfig
) -> bool:
    """Whether a job serves the models that it was told to, and no others."""
    told = {each.name: each.base_path for each in config.model_config_list.config}
    return told == report.base_paths


def config_of(
    fleet: Fleet, names: tuple[str, ...]
) -> model_server_config_pb2.ModelServerConfig:
    """Returns the config that a job is told to serve."""
    config = model_server_config_pb2.ModelServerConfig()
    config.model_config_list.SetInParent()
    for name in names:
        config.model_config_list.config.append(read_config(fleet.models[name]))
    return config


def measured(reports: Mapping[str, JobReport]) -> dict[str, int]:
    """Returns the most memory that a version of each model takes on any job."""
    most: dict[str, int] = {}
    for report in reports.values():
        for name, size in report.version_bytes.items():
            most[name] = max(most.get(name, 0), size)
    return most
