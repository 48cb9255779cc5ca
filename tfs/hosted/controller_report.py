"""What the Controller API says of a fleet: how it fares, and what is not in force yet. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tfs.hosted.fleet import Fleet, HostedModel, read_config
from tfs.hosted.packing import free_bytes, num_copies, num_servers
from tfs.hosted.reports import JobSighting, ReplicaSighting
from tfs.hosted.snapshot import Snapshot
from tfs.proto.tfs.v1 import controller_pb2 as pb
from tfs.proto.tfs.v1 import model_config_pb2


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is waited for, in words; empty if nothing is. Immutable."""

    what: str = ""
    is_stuck: bool = False  # it failed, and will not come by itself in a while


def model_waits_for(
    state: Snapshot,
    name: str,
    version: int | None = None,
    num_servers: int = 0,
    *,
    is_new: bool = False,
) -> Waiting:
    """Returns what a model waits for; one that is not in the fleet waits to be gone.

    What holds on the servers that answer counts; ``version`` is to be available there as
    well, and ``num_servers`` are to answer for the model. What is wrong with it says nothing
    of a version that ``is_new``, until servers have found that.
    """
    model = state.fleet.models.get(name)
    seen = state.models_seen.get(name, {})
    if model is None:
        left = ", ".join(seen)
        return Waiting(f"{left} to unload it" if left else "")
    if str(version) in model.quarantined:
        return Waiting(
            f"version {version}, which is quarantined: {model.quarantined[str(version)]}",
            is_stuck=True,
        )
    if not model.num_replicas:
        return Waiting()  # for the next request
    if not model.placed:
        return Waiting("a serving job that has room for it", is_stuck=True)
    traffic = read_config(model.config).traffic
    silent, num_answering = "", 0
    for job in (state.fleet.jobs[each] for each in model.placed):
        sighting = state.jobs_seen.get(job.name, JobSighting())
        num_answering += len(sighting.answering)
        if not (silent or sighting.answering or job.is_down):
            problem = sighting.problem
            silent = f"{job.name} to answer" + (f": {problem}" if problem else "")
        for address in sighting.answering:
            there = seen.get(address, ReplicaSighting())
            for what in _missing(model, traffic, there, version):
                problem = there.problem
                said = f"{what} on {address}" + (f": {problem}" if problem else "")
                has_tried = there.generation == model.generation and not there.coming
                is_found = version in (*there.versions, *there.failed) or not is_new
                return Waiting(said, bool(problem) and has_tried and is_found)
    if silent:
        return Waiting(silent)
    missing = num_servers - num_answering
    return Waiting(f"{missing} of {num_servers} servers" if missing > 0 else "")


def job_waits_for(state: Snapshot, name: str) -> Waiting:
    """Returns what a job waits for; one that leaves, or is gone, waits to be gone. Pure."""
    job = state.fleet.jobs.get(name)
    if job is None:
        return Waiting()
    if job.is_leaving:
        return Waiting("its models to answer elsewhere")
    seen = state.jobs_seen.get(name, JobSighting())
    if len(job.addresses) > job.num_replicas:
        return Waiting("replicas to be drained")
    missing = job.num_replicas - len(seen.answering)
    if missing > 0:
        problem = f": {seen.problem}" if seen.problem else ""
        return Waiting(f"{missing} of {job.num_replicas} replicas to answer{problem}")
    if any(each != (job.memory_bytes, job.cpus) for each in seen.limits):
        return Waiting("replicas to be started again with its limits")
    for each, model in state.fleet.models.items():
        replicas = state.models_seen.get(each, {})
        for address in seen.answering if name in model.placed else ():
            there = replicas.get(address, ReplicaSighting())
            if there.primary is None and not there.problem:
                return Waiting(f"{each} to answer on {address}")
    return Waiting()


def _missing(
    model: HostedModel,
    traffic: model_config_pb2.Traffic,
    there: ReplicaSighting,
    version: int | None,
) -> Iterator[str]:
    """Yields what a server lacks of a model."""
    if there.generation != model.generation:
        yield "the change"
    if traffic.primary and there.primary != traffic.primary:
        yield f"version {traffic.primary} as the one that answers"
    if there.primary is None:
        yield "a version"
    trial = traffic.canary.version
    if trial and there.canary != trial:
        yield f"the trial of version {trial}"
    if version is not None and version not in there.versions:
        yield f"version {version}"
    if there.coming:
        yield f"version {there.coming[-1]}"


def model(state: Snapshot, name: str) -> pb.ModelInfo:
    """Returns a model, or only the name of one that is gone."""
    report = pb.ModelInfo(model=name, waits_for=model_waits_for(state, name).what)
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
