"""Places models on serving jobs: bin packing by memory and processors, with few moves.

A model is placed on jobs until they have as many replicas together as it should have; all
replicas of a job have the same models. It stays where it is while its job is up, is not
leaving, and has room for it. What is missing is placed largest first, each on the job with
the least memory that suffices, so that large holes stay free for large models, and in a
zone that has none of it yet, if there is one with room. A further copy goes where its model
makes no new pair of jobs that share models: the fewer pairs, the rarer is a loss of two that
loses one. Models that are loaded on demand go to the job with the fewest of them, and take
together what the largest of them takes. If that leaves models without a place, everything
is packed anew, each where it was if there is room, and if that is not enough, each wherever
it fits; a new packing is used if it leaves out fewer. If models of Prod still lack a place,
they are placed as if there were no others, and models of Temp in what they leave.

("TensorFlow-Serving", section 3.1: the Controller "estimates the RAM required to serve a
given model and selects a serving job that has enough memory capacity".)
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice

from tfs.hosted.fleet import Fleet, HostedModel, Job


@dataclass(frozen=True, slots=True)
class Packing:
    """A fleet with its models placed, and how many replicas of any have no place."""

    fleet: Fleet
    shortfall: Mapping[str, int]


def pack(fleet: Fleet) -> Packing:
    """Returns where every model goes, given where it is; pure."""
    found = _placed(fleet)
    prod = {name: each for name, each in fleet.models.items() if not each.is_temp}
    if len(prod) == len(fleet.models) or not found.shortfall.keys() & prod:
        return found
    packer = _Packer(fleet)
    packer.keep(_placed(replace(fleet, models=prod)).fleet.models)
    packer.keep(fleet.models)  # models of Temp
    packer.fill({})
    return packer.packing()


def _placed(fleet: Fleet) -> Packing:
    packer = _Packer(fleet)
    packer.keep(fleet.models)
    packer.fill({})
    found = packer.packing()
    # A model that has a place keeps it. A full fleet takes no model away for another.
    placed = [name for name, each in found.fleet.models.items() if each.placed]
    for preferred in (fleet.models, {}):
        if not found.shortfall:
            break
        packed = _Packer(fleet)
        packed.fill(preferred)
        other = packed.packing()
        if sum(other.shortfall.values()) < sum(found.shortfall.values()) and all(
            other.fleet.models[name].placed for name in placed
        ):
            found = other
    return found


def free_bytes(fleet: Fleet) -> dict[str, int]:
    """Returns how much of each job's memory is free; negative if it has too many models."""
    rooms = {name: _Room(job) for name, job in fleet.jobs.items()}
    for model in fleet.models.values():
        for job in model.placed:
            if job in rooms:
                rooms[job].put(model)
    return {name: room.free_bytes for name, room in rooms.items()}


def num_servers(jobs: Mapping[str, Job]) -> Counter[tuple[str, bool]]:
    """Returns how many servers each partition may have for models of Prod, and of Temp."""
    found: Counter[tuple[str, bool]] = Counter()
    for job in jobs.values():
        if job.takes_models:
            most = max(job.num_replicas, job.max_replicas)
            found[job.partition, True] += most
            found[job.partition, False] += 0 if job.is_temp else most
    return found


def num_copies(model: HostedModel, servers: Mapping[tuple[str, bool], int]) -> int:
    """Returns on how many servers a model should be, where there are so many of each."""
    if not model.copies_by_default:
        return model.num_replicas
    there = servers.get((model.partition, model.is_temp), 0)
    return min(model.num_replicas, max(there, 1))


class _Room:
    """What is left of a job; its models on demand share room for the largest of them."""

    __slots__ = ("free_bytes", "free_cpus", "job", "num_on_demand", "shared_bytes")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.free_bytes = job.memory_bytes
        self.free_cpus = float(job.cpus) if job.cpus else math.inf
        self.num_on_demand = 0
        self.shared_bytes = 0

    def has_room(self, model: HostedModel) -> bool:
        """Whether a model fits."""
        return self.free_bytes >= self._taken_by(model) and self.free_cpus >= model.cpus

    def put(self, model: HostedModel) -> None:
        """Takes what a model needs."""
        taken = self._taken_by(model)
        if model.is_on_demand:
            self.num_on_demand += 1
            self.shared_bytes += taken
        self.free_bytes -= taken
        self.free_cpus -= model.cpus

    def _taken_by(self, model: HostedModel) -> int:
        if not model.is_on_demand:
            return model.memory_bytes
        return max(model.memory_bytes - self.shared_bytes, 0)


class _Packer:
    """A packing that is being made.

    Jobs of a partition are kept in the order of their free memory, so that the tightest one
    is found without looking at all: 20,000 copies take a second.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._rooms = {
            name: _Room(job) for name, job in fleet.jobs.items() if job.takes_models
        }
        self._by_free: dict[str, list[tuple[int, str]]] = {}
        for name, room in self._rooms.items():
            order = self._by_free.setdefault(room.job.partition, [])
            insort(order, (room.free_bytes, name))
        self._beside: dict[str, dict[str, None]] = {name: {} for name in self._rooms}
        self._placed: dict[str, list[str]] = {name: [] for name in fleet.models}
        servers = num_servers(fleet.jobs)
        self._missing = {
            name: num_copies(model, servers) for name, model in fleet.models.items()
        }

    def packing(self) -> Packing:
        """Returns what was placed so far; who goes nowhere else is the same object."""
        models = self._fleet.models
        moved = {
            name: replace(models[name], placed=tuple(at))
            for name, at in self._placed.items()
            if set(at) != set(models[name].placed)
        }
        short = {name: num for name, num in self._missing.items() if num > 0}
        return Packing(self._fleet.changed(moved), short)

    def keep(self, before: Mapping[str, HostedModel]) -> None:
        """Places models where they were, where they fit, the largest first."""
        for model in self._largest_first(before):
            for job in before[model.name].placed:
                if self._missing[model.name] > 0 and self._fits(model, job):
                    self._put(model, job)

    def fill(self, preferred: Mapping[str, HostedModel]) -> None:
        """Places what is missing: the first copy of all models, then the second of any."""
        short = self._largest_first(n for n, left in self._missing.items() if left > 0)
        for wanted in range(1, len(self._rooms) + 1):
            short = [each for each in short if self._missing[each.name] > 0]
            if not any(len(self._placed[each.name]) >= wanted - 1 for each in short):
                break
            for model in short:
                if len(self._placed[model.name]) < wanted:
                    known = preferred.get(model.name)
                    job = self._best(model, known.placed if known else ())
                    if job is not None:
                        self._put(model, job)

    def _largest_first(self, names: Iterable[str]) -> list[HostedModel]:
        """Returns models in the order of what they take of the largest job."""
        jobs = self._fleet.jobs.values()
        most_bytes = max((job.memory_bytes for job in jobs), default=1)
        most_cpus = max((job.cpus for job in jobs), default=0) or math.inf

        def order(model: HostedModel) -> tuple[float, str]:
            share = max(model.memory_bytes / most_bytes, model.cpus / most_cpus)
            return -share, model.name

        return sorted((self._fleet.models[each] for each in names), key=order)

    def _best(self, model: HostedModel, preferred: tuple[str, ...]) -> str | None:
        """Returns the job where the next copy of a model goes; None if it fits nowhere."""
        for job in preferred:
            if self._fits(model, job):
                return job
        order, rooms = self._by_free.get(model.partition, ()), self._rooms
        if model.is_on_demand:
            fitting = [job for _, job in order if self._fits(model, job)]
            return min(fitting, key=lambda job: rooms[job].num_on_demand, default=None)
        placed = self._placed[model.name]
        zones = {rooms[job].job.zone for job in placed} - {""}
        first = bisect_left(order, (model.memory_bytes, ""))
        neighbours = [other for job in placed for other in self._beside[job]]
        # The first will do mostly, so neither is a list.
        alone = (job for _, job in islice(order, first, None) if not self._beside[job])
        others = (job for _, job in islice(order, first, None))
        second_best: str | None = None
        for job in chain(neighbours, alone if placed else (), others):
            if not self._fits(model, job):
                continue
            if rooms[job].job.zone not in zones:
                return job
            second_best = second_best or job
        return second_best

    def _fits(self, model: HostedModel, job: str) -> bool:
        room = self._rooms.get(job)
        return (
            room is not None
            and room.job.partition == model.partition
            and (model.is_temp or not room.job.is_temp)
            and job not in self._placed[model.name]
            and room.has_room(model)
        )

    def _put(self, model: HostedModel, job: str) -> None:
        room, placed = self._rooms[job], self._placed[model.name]
        order = self._by_free[room.job.partition]
        del order[bisect_left(order, (room.free_bytes, job))]
        room.put(model)
        insort(order, (room.free_bytes, job))
        for other in placed:
            self._beside[job][other] = self._beside[other][job] = None
        placed.append(job)
        # A job without a server gets one with its first model.
        self._missing[model.name] -= max(room.job.num_replicas, 1)
