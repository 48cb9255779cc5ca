"""Tells whether what is wanted of a model or a job is in force, and what it waits for if not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tfs.hosted.fleet import HostedModel
from tfs.hosted.fleet_edits import read_config
from tfs.hosted.fleet_state import Snapshot
from tfs.hosted.sightings import JobSighting, ModelSighting, ReplicaSighting
from tfs.proto.tfs.v1 import model_config_pb2


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is waited for. Immutable.

    Attributes:
        what: In words; empty if nothing is.
        is_stuck: Whether it failed, and will not come by itself in a while.

    """

    what: str = ""
    is_stuck: bool = False


def model_waits_for(state: Snapshot, name: str, version: int | None = None) -> Waiting:
    """Returns what a model waits for, on the servers that answer; pure.

    Args:
        state: The fleet.
        name: The model; one that is not in the fleet waits to be gone.
        version: A version that is to be available as well.

    """
    model = state.fleet.models.get(name)
    seen = state.models_seen.get(name, ModelSighting())
    if model is None:
        left = ", ".join(seen.replicas)
        return Waiting(f"{left} to unload it" if left else "")
    placed = state.fleet.placement.get(name, ())
    if not placed:
        return Waiting("a serving job that has room for it", is_stuck=True)
    traffic = read_config(model).traffic
    jobs = [state.fleet.jobs[job] for job in placed]
    silent = []
    for job in jobs:
        answering = state.jobs_seen.get(job.name, JobSighting()).answering
        if not answering and not job.is_down:
            silent.append(job.name)
        for address in answering:
            there = seen.replicas.get(address, ReplicaSighting())
            for what in _missing(model, traffic, there, version):
                problem = there.problem
                said = f"{what} on {address}" + (f": {problem}" if problem else "")
                is_stuck = bool(problem) and bool(there.generation) and not there.coming
                return Waiting(said, is_stuck)
    return Waiting(f"{silent[0]} to answer" if silent else "")


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
    if missing <= 0:
        return Waiting()
    problem = f": {seen.problem}" if seen.problem else ""
    return Waiting(f"{missing} of {job.num_replicas} replicas to answer{problem}")


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
