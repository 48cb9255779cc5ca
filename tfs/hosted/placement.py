"""Places models on serving jobs: bin packing by memory, with as few moves as possible.

A model is placed on jobs until they have as many replicas together as it should have; all
replicas of a job have the same models. It stays where it is while its job is up, is not
leaving, and has room for it. What is missing is placed largest first, each on the job with
the least room that suffices, so that large holes stay free for large models. If that
leaves models without a place, everything is packed anew, and the
new packing is used if it leaves out fewer. Models move then, but none is without a
place meanwhile (:mod:`~tfs.hosted.wanted_models`).

("TensorFlow-Serving", section 3.1: the Controller "estimates the RAM required to serve a
given model and selects a serving job that has enough memory capacity".)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfs.hosted.fleet import HostedModel, Job


@dataclass(frozen=True, slots=True)
class Placement:
    """Where models go.

    Attributes:
        jobs: The names of each model's jobs, for every model.
        shortfall: How many replicas have no place, for models that have such replicas.

    """

    jobs: Mapping[str, tuple[str, ...]]
    shortfall: Mapping[str, int]


def place(
    models: Mapping[str, HostedModel],
    jobs: Mapping[str, Job],
    before: Mapping[str, tuple[str, ...]],
) -> Placement:
    """Returns where every model goes; pure.

    Args:
        models: The models to serve, by name.
        jobs: The existing jobs, by name.
        before: Where models are now.

    """
    settled = _pack(models, jobs, before)
    if not settled.shortfall:
        return settled
    packed = _pack(models, jobs, {})
    fewer = sum(packed.shortfall.values()) < sum(settled.shortfall.values())
    # A model that has a place keeps it. A full fleet takes no model away for another.
    keeps_all = all(
        packed.jobs[name] or not settled.jobs[name] for name in settled.jobs
    )
    return packed if fewer and keeps_all else settled


def free_bytes(
    models: Mapping[str, HostedModel],
    jobs: Mapping[str, Job],
    placement: Mapping[str, tuple[str, ...]],
) -> dict[str, int]:
    """Returns how much of each job's memory is free; negative if it has too many models."""
    free = {name: job.memory_bytes for name, job in jobs.items()}
    for model, placed in placement.items():
        for job in placed:
            if job in free and model in models:
                free[job] -= models[model].memory_bytes
    return free


def _pack(
    models: Mapping[str, HostedModel],
    jobs: Mapping[str, Job],
    before: Mapping[str, tuple[str, ...]],
) -> Placement:
    largest_first = sorted(
        models.values(), key=lambda model: (-model.memory_bytes, model.name)
    )
    free = {name: job.memory_bytes for name, job in jobs.items() if job.takes_models}
    placed: dict[str, list[str]] = {name: [] for name in models}
    missing = {model.name: model.num_replicas for model in largest_first}

    def put(model: HostedModel, job: str) -> None:
        free[job] -= model.memory_bytes
        placed[model.name].append(job)
        missing[model.name] -= jobs[job].num_replicas

    def has_room(model: HostedModel, job: str) -> bool:
        return (
            job in free
            and job not in placed[model.name]
            and jobs[job].partition == model.partition
            and free[job] >= model.memory_bytes
        )

    for model in largest_first:
        for job in before.get(model.name, ()):
            if missing[model.name] > 0 and has_room(model, job):
                put(model, job)
    # The first job of every model is found before the second of any.
    for wanted in range(1, len(jobs) + 1):
        short = [each for each in largest_first if missing[each.name] > 0]
        if not short or all(len(placed[each.name]) < wanted - 1 for each in short):
            break
        for model in short:
            if len(placed[model.name]) >= wanted:
                continue
            rooms = [job for job in free if has_room(model, job)]
            if rooms:
                put(model, min(rooms, key=lambda job: (free[job], job)))
    shortfall = {name: number for name, number in missing.items() if number > 0}
    return Placement({name: tuple(at) for name, at in placed.items()}, shortfall)
