"""Places models on serving jobs: bin packing by memory, with as few moves as possible.

A model is placed on jobs until they have as many replicas together as it should have; all
replicas of a job have the same models. It stays where it is while its job is up, is not
leaving, and has room for it. What is missing is placed largest first, each on the job with
the least room that suffices, so that large holes stay free for large models. Models that
are loaded on demand go to the job with the fewest of them, and take together what the
largest of them takes. If that
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
    rooms = {name: _Room(job.memory_bytes) for name, job in jobs.items()}
    for model, placed in placement.items():
        for job in placed:
            if job in rooms and model in models:
                rooms[job].put(models[model])
    return {name: room.free_bytes for name, room in rooms.items()}


@dataclass(slots=True)
class _Room:
    """What is left of a job's memory; its models on demand share room for the largest."""

    free_bytes: int
    num_on_demand: int = 0
    shared_bytes: int = 0

    def taken_by(self, model: HostedModel) -> int:
        """Returns how much of it a model would take."""
        if model.is_on_demand:
            return max(model.memory_bytes - self.shared_bytes, 0)
        return model.memory_bytes

    def put(self, model: HostedModel) -> None:
        """Takes what a model needs."""
        taken = self.taken_by(model)
        self.free_bytes -= taken
        if model.is_on_demand:
            self.num_on_demand += 1
            self.shared_bytes += taken


def _pack(
    models: Mapping[str, HostedModel],
    jobs: Mapping[str, Job],
    before: Mapping[str, tuple[str, ...]],
) -> Placement:
    largest_first = sorted(
        models.values(), key=lambda model: (-model.memory_bytes, model.name)
    )
    rooms = {
        name: _Room(job.memory_bytes) for name, job in jobs.items() if job.takes_models
    }
    placed: dict[str, list[str]] = {name: [] for name in models}
    missing = {model.name: model.num_replicas for model in largest_first}

    def put(model: HostedModel, job: str) -> None:
        rooms[job].put(model)
        placed[model.name].append(job)
        missing[model.name] -= jobs[job].num_replicas

    def has_room(model: HostedModel, job: str) -> bool:
        return (
            job in rooms
            and job not in placed[model.name]
            and jobs[job].partition == model.partition
            and rooms[job].free_bytes >= rooms[job].taken_by(model)
        )

    def tightness(model: HostedModel, job: str) -> tuple[int, int, str]:
        room = rooms[job]
        return model.is_on_demand * room.num_on_demand, room.free_bytes, job

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
            found = [job for job in rooms if has_room(model, job)]
            if found:
                put(model, min(found, key=lambda job: tightness(model, job)))
    shortfall = {name: number for name, number in missing.items() if number > 0}
    return Placement({name: tuple(at) for name, at in placed.items()}, shortfall)
