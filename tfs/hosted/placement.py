"""Places models on serving jobs: bin packing by memory, with as few moves as possible.

A replica stays where it is while its job is up, is not leaving, and has room for it.
Missing replicas are placed largest first, each on the job with the least room that
suffices, so that large holes stay free for large models. Two replicas of a model never
share a job. If that leaves replicas without a place, everything is packed anew, and the
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
        jobs: The addresses of each model's jobs, for every model.
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
        jobs: The existing jobs, by address.
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
    free = {address: job.memory_bytes for address, job in jobs.items()}
    for name, addresses in placement.items():
        for address in addresses:
            if address in free and name in models:
                free[address] -= models[name].memory_bytes
    return free


def _pack(
    models: Mapping[str, HostedModel],
    jobs: Mapping[str, Job],
    before: Mapping[str, tuple[str, ...]],
) -> Placement:
    largest_first = sorted(
        models.values(), key=lambda model: (-model.memory_bytes, model.name)
    )
    free = {
        address: job.memory_bytes for address, job in jobs.items() if job.takes_models
    }
    placed: dict[str, list[str]] = {name: [] for name in models}

    def put(model: HostedModel, address: str) -> None:
        free[address] -= model.memory_bytes
        placed[model.name].append(address)

    def has_room(model: HostedModel, address: str) -> bool:
        return (
            address in free
            and address not in placed[model.name]
            and jobs[address].partition == model.partition
            and free[address] >= model.memory_bytes
        )

    for model in largest_first:
        for address in before.get(model.name, ()):
            if len(placed[model.name]) < model.num_replicas and has_room(
                model, address
            ):
                put(model, address)
    # The first replica of every model is placed before the second of any.
    most = max((model.num_replicas for model in largest_first), default=0)
    for wanted in range(1, most + 1):
        for model in largest_first:
            if len(placed[model.name]) >= min(wanted, model.num_replicas):
                continue
            rooms = [address for address in free if has_room(model, address)]
            if rooms:
                put(model, min(rooms, key=lambda address: (free[address], address)))
    shortfall = {
        model.name: model.num_replicas - len(placed[model.name])
        for model in largest_first
        if len(placed[model.name]) < model.num_replicas
    }
    return Placement({name: tuple(at) for name, at in placed.items()}, shortfall)
