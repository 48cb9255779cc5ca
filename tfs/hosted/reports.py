"""What servers report, and what synchronizers note of it: values and pure functions.

A sighting is no part of the wanted state; it is in the store for controllers to answer by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tfs.proto.tensorflow_serving.apis import get_model_status_pb2
from tfs.proto.tfs.v1 import admin_service_pb2

_States = get_model_status_pb2.ModelVersionStatus
_Phases = admin_service_pb2.CanaryReport


@dataclass(frozen=True, slots=True)
class ReplicaSighting:
    """How a model fares on one server. Immutable."""

    generation: int = 0  # of the model, that the server has taken in; 0: it is behind
    primary: int | None = None  # the version that answers
    versions: tuple[int, ...] = ()  # that are available
    coming: tuple[int, ...] = ()  # versions that are on their way there
    canary: int | None = None  # on trial, once the trial runs or waits for a request
    problem: str = ""
    failed: tuple[int, ...] = ()  # versions with which something is wrong


ModelSighting = Mapping[str, ReplicaSighting]
"""How a model fares on every server that has it, by address."""


Configs = Mapping[str, str]
"""The configs that a server was told, or should be, by the names of the models."""


class JobSighting(NamedTuple):
    """Which replicas of a job answer and do as told; what is wrong with the others."""

    answering: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class JobReport:
    """What a server said in its last answer. Immutable."""

    # A process that started later does not know what the one before was told.
    started_s: float = 0.0
    models: Mapping[str, ReplicaSighting] = field(default_factory=dict)
    # How much the largest version of each model takes there.
    version_bytes: Mapping[str, int] = field(default_factory=dict)
    # How long the requests of each model took together. It changes all the time, and is
    # no reason to look again.
    request_s: Mapping[str, float] = field(default_factory=dict, compare=False)
    at_s: float = field(default=0.0, compare=False)  # when it answered
    # It may be asked what changed since.
    revision: int = field(default=0, compare=False)
    is_part: bool = False  # it says the rest when it is asked on
    is_behind: bool = False  # it had not taken in yet what it was told last
    # What it was told, and took in, before it said this. The caller's to note.
    told: Configs = field(default_factory=dict)
    is_silent: bool = False  # it did not answer the last question


NOTHING: Final = JobReport(revision=1, is_silent=True)
"""The report of a server that was never heard, or is given up; the revision is one since
which it says everything, in parts."""


def report_of(
    reply: admin_service_pb2.ListModelsResponse, before: JobReport = NOTHING
) -> JobReport:
    """Returns the report in a reply of AdminService.ListModels.

    The reply tells what changed since ``before``, the server's last report, or all.
    """
    since = before if reply.since else NOTHING
    models, version_bytes = dict(since.models), dict(since.version_bytes)
    request_s = dict(since.request_s)
    for name in reply.gone:
        for of in (models, version_bytes, request_s):
            of.pop(name, None)
    for model in reply.models:
        taken = [
            max(each.memory.reserved_bytes, each.memory.resident_bytes)
            for each in model.versions
        ]
        version_bytes.pop(model.name, None)
        if any(taken):
            version_bytes[model.name] = max(taken)
        seen = _sighting(model)
        if models.get(model.name) != seen:
            models[model.name] = seen
        request_s[model.name] = model.request_s
    return JobReport(
        reply.server.started_s,
        models,
        version_bytes,
        request_s,
        revision=reply.revision,
        is_part=reply.revision < reply.newest,
        is_behind=reply.behind,
    )


def _sighting(model: admin_service_pb2.ModelReport) -> ReplicaSighting:
    primary = model.primary if model.HasField("primary") else None
    wrong = {each.version: each.error for each in model.versions if each.error.code}
    failed = tuple(sorted(wrong))
    if model.residency == admin_service_pb2.ModelReport.REGISTERED:
        # Whether requests have it loaded now or not: there is nothing to wait for.
        known = _versions(model, _States.START, _States.LOADING, _States.AVAILABLE)
        problem = wrong[failed[-1]].message if failed else ""
        trial = _trial(model, _Phases.WAITING, _Phases.RUNNING)
        return ReplicaSighting(0, primary, known, (), trial, problem, failed)
    newer = [error for number, error in wrong.items() if number > (primary or -1)]
    said = [error.message for error in (model.error, *newer) if error.code]
    return ReplicaSighting(
        0,
        primary,
        _versions(model, _States.AVAILABLE),
        _versions(model, _States.START, _States.LOADING),
        _trial(model, _Phases.RUNNING),
        said[0] if said else "",
        failed,
    )


def _trial(model: admin_service_pb2.ModelReport, *phases: int) -> int | None:
    return model.canary.canary.version if model.canary.phase in phases else None


def _versions(model: admin_service_pb2.ModelReport, *states: int) -> tuple[int, ...]:
    return tuple(
        sorted(
            each.version
            for each in model.versions
            if each.state in states and not each.error.code
        )
    )


def measured(reports: Mapping[str, JobReport]) -> dict[str, int]:
    """Returns the most memory that a version of each model takes on any server."""
    most: dict[str, int] = {}
    for report in reports.values():
        for name, size in report.version_bytes.items():
            most[name] = max(most.get(name, 0), size)
    return most
