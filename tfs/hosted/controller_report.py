"""What the Controller API says of a fleet: how it fares, and what is not in force yet. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tfs.hosted.fleet import Fleet, HostedModel, read_config
from tfs.hosted.packing import free_bytes, num_copies, num_servers
from tfs.hosted.reports import JobSighting, ReplicaSighting
from tfs.hosted.snapshot import Snapshot
from tfs.proto.tfs.v1 import controller_pb2 as pb


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is waited for, in words; empty if nothing is. Immutable."""

    what: str = ""
    is_stuck: bool = False  # it failed, and will not come by itself in a while


def waits_for(state: Snapshot, op: pb.Op, *, is_new: bool = False) -> Waiting:
    """Returns what the model or job of a request waits for; who is not wanted, to be gone.

    What holds on the servers that answer counts. The request's version is to be available
    there as well, and as many servers as it asked for are to answer, unless somebody changed
    the model since. If the version ``is_new``, what is wrong with the model says nothing of
    it until servers have found it.
    """
    if not op.model:
        return _job_waits_for(state, op.job)
    model = state.fleet.models.get(op.model)
    seen = state.models_seen.get(op.model, {})
    if model is None:
        left = ", ".join(seen)
        return Waiting(f"{left} to unload it" if left else "")
    asked = op if op.generation == model.generation else pb.Op()
    version = asked.version if asked.HasField("version") else None
    if how := model.quarantined.get(str(version)):
        return Waiting(f"version {version}, which is quarantined: {how}", is_stuck=True)
    if not model.num_replicas:
        return Waiting()  # for the next request
    if not model.placed:
        return Waiting("a serving job that has room for it", is_stuck=True)
    silent, num_answering = "", 0
    for job in (state.fleet.jobs[each] for each in model.placed):
        sighting = state.jobs_seen.get(job.name, JobSighting())
        num_answering += len(sighting.answering)
        if not (silent or sighting.answering or job.is_down):
            silent = f"{job.name} to answer{_why(sighting.problem)}"
        for address in sighting.answering:
            there = seen.get(address, ReplicaSighting())
            if what := _missing(model, there, version):
                has_tried = there.generation == model.generation and not there.coming
                is_found = version in (*there.versions, *there.failed) or not is_new
                is_stuck = bool(there.problem) and has_tried and is_found
                return Waiting(f"{what} on {address}{_why(there.problem)}", is_stuck)
    if silent:
        return Waiting(silent)
    missing = asked.num_servers - num_answering
    return Waiting(f"{missing} of {asked.num_servers} servers" if missing > 0 else "")


def _why(problem: str) -> str:
    return f": {problem}" if problem else ""


def _job_waits_for(state: Snapshot, name: str) -> Waiting:
    job = state.fleet.jobs.get(name)
    if job is None:
        return Waiting()
    if job.is_leaving:
        return Waiting("its models to answer elsewhere")
    seen = state.jobs_seen.get(name, JobSighting())
    if len(job.addresses) > job.num_replicas:
        return Waiting("replicas to be drained")
    # Those that are drained may still do as told.
    missing = job.num_replicas - len({*seen.answering} & {*job.addresses})
    if missing > 0:
        wanted = f"{missing} of {job.num_replicas} replicas"
        return Waiting(f"{wanted} to answer{_why(seen.problem)}")
    for each, model in state.fleet.models.items():
        replicas = state.models_seen.get(each, {})
        for address in seen.answering if name in model.placed else ():
            there = replicas.get(address, ReplicaSighting())
            if there.primary is None and not there.problem:
                return Waiting(f"{each} to answer on {address}")
    return Waiting()


def _missing(model: HostedModel, there: ReplicaSighting, version: int | None) -> str:
    """Returns the first that a server lacks of a model; empty if it lacks nothing."""
    traffic = read_config(model.config).traffic
    trial = traffic.canary.version
    if there.generation != model.generation:
        return "the change"
    if traffic.primary and there.primary != traffic.primary:
        return f"version {traffic.primary} as the one that answers"
    if there.primary is None:
        return "a version"
    if trial and there.canary != trial:
        return f"the trial of version {trial}"
    if version is not None and version not in there.versions:
        return f"version {version}"
    return f"version {there.coming[-1]}" if there.coming else ""


def model(state: Snapshot, name: str) -> pb.ModelInfo:
    """Returns a model, or only the name of one that is gone."""
    report = pb.ModelInfo(
        model=name, waits_for=waits_for(state, pb.Op(model=name)).what
    )
    found = state.fleet.models.get(name)
    if found is not None:
        for each in _OF_MODEL:
            setattr(report, each, getattr(found, each))
        for each in _HINTS:
            setattr(report.hints, each, getattr(found, each))
        report.memory_is_estimate = found.is_estimate
        report.instance = "temp" if found.is_temp else "prod"
        if state.fleet.num_placed(name) < found.num_replicas:
            report.num_replicas = num_copies(found, num_servers(state.fleet.jobs))
        report.jobs.extend(found.placed)
        for version, how in found.quarantined.items():
            report.quarantined[int(version)] = how
    seen = state.models_seen.get(name, {})
    for address, there in seen.items():
        report.replicas.add(
            address=address,
            primary=there.primary,
            available_versions=there.versions,
            pending_versions=there.coming,
            canary=there.canary,
            problem=there.problem,
        )
    return report


_OF_MODEL: Final = ("generation", "config", "partition", "owner", "num_replicas")
_HINTS: Final = ("min_replicas", "max_replicas", "memory_bytes", "cpus")
_OF_JOB: Final = (
    *("generation", "partition", "zone", "memory_bytes", "cpus", "num_replicas"),
    *("addresses", "is_ours", "is_down", "is_leaving"),
)


def jobs(state: Snapshot, fleet: Fleet) -> list[pb.JobInfo]:
    """Returns the jobs of a fleet, and how they fare now."""
    free = free_bytes(fleet)
    num_models = Counter(
        each for model in fleet.models.values() for each in model.placed
    )
    return [
        pb.JobInfo(
            job=name,
            free_bytes=free[name],
            num_models=num_models[name],
            instance="temp" if job.is_temp else "prod",
            answering=seen.answering,
            problem=seen.problem,
            **{each: getattr(job, each) for each in _OF_JOB},
        )
        for name, job in fleet.jobs.items()
        for seen in [state.jobs_seen.get(name, JobSighting())]
    ]


def fleet(state: Snapshot) -> pb.FleetInfo:
    """Returns everything but changes."""
    return pb.FleetInfo(
        revision=state.revision,
        models=[model(state, name) for name in state.fleet.models],
        jobs=jobs(state, state.fleet),
    )


def simulation(now: Snapshot, after: Fleet, notes: Sequence[str]) -> pb.Simulation:
    """Returns what would be different in ``after``."""
    report = pb.Simulation(jobs=jobs(now, after), notes=notes)
    before, old, new = now.fleet, now.fleet.packing(), after.packing()
    for name in sorted({*old, *new}):
        was, placed = old.get(name, ()), new.get(name, ())
        if set(was) != set(placed):
            size = (after.models.get(name) or before.models[name]).memory_bytes
            report.moves.add(
                model=name, from_jobs=was, to_jobs=placed, memory_bytes=size
            )
    return report
