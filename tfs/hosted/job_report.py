"""What a serving job says of itself, and what follows for requests: values and pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tfs.hosted.controller import read_config
from tfs.hosted.fleet import Fleet
from tfs.proto.tensorflow_serving.config import model_server_config_pb2
from tfs.proto.tfs.v1 import admin_service_pb2


@dataclass(frozen=True, slots=True)
class JobReport:
    """One serving job at its last answer. Immutable.

    Attributes:
        started_s: When its process started: another one has forgotten what it was told.
        answering: Models that answer requests which name no version.
        failing: What is wrong with its other models, by name.
        version_bytes: What the largest version of a model takes there.

    """

    started_s: float = 0.0
    answering: frozenset[str] = frozenset()
    failing: Mapping[str, str] = field(default_factory=dict)
    version_bytes: Mapping[str, int] = field(default_factory=dict)


def report_of(reply: admin_service_pb2.ListModelsResponse) -> JobReport:
    """Returns what AdminService.ListModels said."""
    failing = {}
    version_bytes = {}
    for model in reply.models:
        if not model.HasField("primary"):
            errors = [model.error, *(each.error for each in model.versions)]
            said = [error.message for error in errors if error.code]
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
        frozenset(each.name for each in reply.models if each.HasField("primary")),
        failing,
        version_bytes,
    )


def routes_of(
    fleet: Fleet, reports: Mapping[str, JobReport]
) -> dict[str, tuple[str, ...]]:
    """Returns the addresses that answer for each model; of those it has no place on, too."""
    return {
        name: tuple(
            address
            for address in fleet.jobs
            if address in reports and name in reports[address].answering
        )
        for name in fleet.models
    }


def config_of(
    fleet: Fleet, names: tuple[str, ...]
) -> model_server_config_pb2.ModelServerConfig:
    """Returns what a job is told to serve."""
    config = model_server_config_pb2.ModelServerConfig()
    config.model_config_list.SetInParent()
    for name in names:
        config.model_config_list.config.append(read_config(fleet.models[name]))
    return config


def measured(reports: Mapping[str, JobReport]) -> dict[str, int]:
    """Returns the most that a version of each model was seen to take on any job."""
    most: dict[str, int] = {}
    for report in reports.values():
        for name, size in report.version_bytes.items():
            most[name] = max(most.get(name, 0), size)
    return most
