"""``tfs hosted status`` and ``why``: what a fleet wants, where it is, and what is wrong."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tfs.cli.argument_range import Subparsers, count
from tfs.cli.hosted.controller import add_fleet_command, ask
from tfs.cli.hosted.flag import flag
from tfs.cli.printing import ago, table
from tfs.proto.tfs.v1 import controller_pb2 as pb
from tfs.server.admin.report_words import mebibytes


def add_status(commands: Subparsers) -> None:
    """Adds the commands."""
    parser = add_fleet_command(
        commands, "status", "show what is wanted, and where", _status
    )
    flag(parser, "--json", "print it as JSON")
    flag(parser, "--history N", "show the last N changes instead", None, count)
    parser = add_fleet_command(
        commands, "why", "show what was done with a model, and why", _why
    )
    parser.add_argument("model", metavar="MODEL")
    flag(parser, "--history N", "at most", 20, count)


def _status(arguments: argparse.Namespace) -> int:
    request = pb.ListFleetRequest(num_changes=arguments.history or 0)
    fleet: pb.FleetInfo = ask(arguments, "ListModels", request, pb.FleetInfo)
    if arguments.history:
        print(_changes(fleet.changes))
        return 0
    if arguments.json:
        print(json.dumps(_as_json(fleet), indent=2))
    else:
        print(table(_JOB_COLUMNS, [_job_row(each) for each in fleet.jobs]))
        print()
        num_servers = {job.job: job.num_replicas for job in fleet.jobs}
        rows = [_model_row(each, num_servers) for each in fleet.models]
        print(table(_MODEL_COLUMNS, rows))
    awake = [each for each in fleet.models if each.num_replicas]
    return 0 if all(each.jobs and _num_answering(each) for each in awake) else 1


def _why(arguments: argparse.Namespace) -> int:
    request = pb.GetModelRequest(model=arguments.model, num_changes=arguments.history)
    model: pb.ModelInfo = ask(arguments, "GetModel", request, pb.ModelInfo)
    where = ", ".join(model.jobs) or "on no job"
    if model.generation:
        owner = f", owned by {model.owner}" if model.owner else ""
        print(
            f"{model.model}: generation {model.generation}, {where}, "
            f"of {model.instance}{owner}"
        )
    if model.waits_for:
        print(f"waits for {model.waits_for}")
    elif problem := _seen_problem(model):
        print(problem)
    print(_changes(model.changes))
    return 0


def _changes(changes: Iterable[pb.FleetChange]) -> str:
    rows = [(each.revision, ago(each.at_s), each.why) for each in changes]
    return table(("REVISION", "AGO", "CHANGE"), rows)


_JOB_COLUMNS: Final = (
    *("JOB", "STATE", "PARTITION", "ANSWERING"),
    *("MEMORY", "FREE", "MODELS", "PROBLEM"),
)
_MODEL_COLUMNS: Final = ("MODEL", "REPLICAS", "ANSWERING", "EACH", "JOBS", "PROBLEM")

_JOB_FIELDS: Final = (
    *("memory_bytes", "partition", "zone", "instance", "num_replicas", "cpus"),
    *("is_ours", "is_down", "is_leaving", "generation", "problem"),
)
_MODEL_FIELDS: Final = (
    *("config", "partition", "owner", "instance", "num_replicas", "generation"),
    "waits_for",
)
_HINT_FIELDS: Final = ("memory_bytes", "cpus", "min_replicas", "max_replicas")


def _fields(of: Any, names: Sequence[str]) -> dict[str, object]:
    return {name: getattr(of, name) for name in names}


def _as_json(fleet: pb.FleetInfo) -> dict[str, object]:
    return {
        "revision": fleet.revision,
        "jobs": [
            {
                "name": each.job,
                "addresses": list(each.addresses),
                "answering": list(each.answering),
                **_fields(each, _JOB_FIELDS),
            }
            for each in fleet.jobs
        ],
        "models": [
            {
                "name": each.model,
                "is_estimate": each.memory_is_estimate,
                "quarantined": dict(each.quarantined),
                **_fields(each, _MODEL_FIELDS),
                **_fields(each.hints, _HINT_FIELDS),
            }
            for each in fleet.models
        ],
        "placement": {each.model: list(each.jobs) for each in fleet.models},
        "sightings": {
            "models": {
                each.model: {
                    "answering": _num_answering(each),
                    "problem": _seen_problem(each),
                }
                for each in fleet.models
            }
        },
    }


def _job_row(job: pb.JobInfo) -> tuple[object, ...]:
    return (
        job.job,
        "down" if job.is_down else "leaving" if job.is_leaving else "up",
        job.partition or "-",
        f"{len(job.answering)} of {job.num_replicas}",
        mebibytes(job.memory_bytes),
        mebibytes(job.free_bytes),
        job.num_models,
        job.problem or "-",
    )


def _model_row(
    model: pb.ModelInfo, num_servers: Mapping[str, int]
) -> tuple[object, ...]:
    placed = sum(num_servers.get(each, 0) for each in model.jobs)
    problems = [model.waits_for] if model.waits_for else []
    if placed < model.num_replicas:
        missing = model.num_replicas - placed
        problems.insert(0, f"no room for {missing} of its replicas")
    elif not problems and _seen_problem(model):
        problems = [_seen_problem(model)]
    newest = max((each.primary for each in model.replicas), default=0)
    problems += [
        f"version {version} is quarantined: {how}"
        for version, how in sorted(model.quarantined.items())
        if version > newest
    ]
    fixed = "" if model.memory_is_estimate else " (fixed)"
    nowhere = "no room" if model.num_replicas else "asleep"
    return (
        model.model,
        f"{placed} of {model.num_replicas}",
        _num_answering(model),
        mebibytes(model.hints.memory_bytes) + fixed,
        ", ".join(model.jobs) or nowhere,
        "; ".join(problems) or "-",
    )


def _num_answering(model: pb.ModelInfo) -> int:
    return sum(each.HasField("primary") for each in model.replicas)


def _seen_problem(model: pb.ModelInfo) -> str:
    return "; ".join(
        f"{each.address}: {each.problem}" for each in model.replicas if each.problem
    )
