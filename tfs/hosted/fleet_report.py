"""Writes a fleet's state as messages of the Controller API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tfs.hosted.fleet import Fleet
from tfs.hosted.fleet_state import Snapshot
from tfs.hosted.in_force import model_waits_for
from tfs.hosted.placement import free_bytes
from tfs.hosted.sightings import JobSighting, ModelSighting
from tfs.hosted.store.state_store import Change
from tfs.proto.tfs.v1 import controller_pb2 as pb


def change(of: Change) -> pb.FleetChange:
    """Returns a change."""
    return pb.FleetChange(revision=of.revision, at_s=of.at_s, why=of.why)


def model(state: Snapshot, name: str) -> pb.ModelInfo:
    """Returns a model, or only the name of one that is gone."""
    report = pb.ModelInfo(model=name, waits_for=model_waits_for(state, name).what)
    found = state.fleet.models.get(name)
    if found is not None:
        report.generation = found.generation
        report.config = found.config
        report.hints.min_replicas = found.min_replicas
        report.hints.max_replicas = found.max_replicas
        report.hints.memory_bytes = found.memory_bytes
        report.hints.cpus = found.cpus
        report.memory_is_estimate = found.is_estimate
        report.partition = found.partition
        report.num_replicas = found.num_replicas
        report.jobs.extend(state.fleet.placement[name])
    seen = state.models_seen.get(name, ModelSighting())
    for address, each in seen.replicas.items():
        report.replicas.add(
            address=address,
            primary=each.primary,
            available_versions=each.versions,
            pending_versions=each.coming,
            canary=each.canary,
            problem=each.problem,
        )
    return report


def jobs(state: Snapshot, fleet: Fleet) -> list[pb.JobInfo]:
    """Returns the jobs of a fleet, and how they fare now."""
    free = free_bytes(fleet.models, fleet.jobs, fleet.placement)
    num_models = Counter(each for placed in fleet.placement.values() for each in placed)
    reports = []
    for name, job in fleet.jobs.items():
        seen = state.jobs_seen.get(name, JobSighting())
        reports.append(
            pb.JobInfo(
                job=name,
                generation=job.generation,
                partition=job.partition,
                memory_bytes=job.memory_bytes,
                free_bytes=free[name],
                num_replicas=job.num_replicas,
                cpus=job.cpus,
                is_ours=job.is_ours,
                is_down=job.is_down,
                is_leaving=job.is_leaving,
                num_models=num_models[name],
                addresses=job.addresses,
                answering=seen.answering,
                problem=seen.problem,
                zone=job.zone,
            )
        )
    return reports


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
    before = now.fleet
    for name in sorted({*before.models, *after.models}):
        was = before.placement.get(name, ())
        placed = after.placement.get(name, ())
        if set(was) == set(placed):
            continue
        found = after.models.get(name) or before.models[name]
        report.moves.add(
            model=name,
            from_jobs=was,
            to_jobs=placed,
            memory_bytes=found.memory_bytes,
        )
    return report
