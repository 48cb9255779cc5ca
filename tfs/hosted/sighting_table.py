"""What all servers say of all models, as one table, and what follows from it.

Of ten thousand models on a thousand servers few change between two looks. So the table
finds what is another object than before, and does anew only what depends on that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from tfs.hosted.fleet import Fleet, HostedModel, replaced
from tfs.hosted.reports import (
    NOTHING,
    Configs,
    JobReport,
    ModelSighting,
    ReplicaSighting,
)


class SightingTable:
    """The table. Confined to one thread.

    Attributes:
        routes: The addresses that answer for each model that is to have a replica. Where
            none of them answered the last question, these are the ones that answered for
            the model before: one that is merely slow to report takes the request. One
            that is told next to give the model up is left out while others answer.
        wanted: What each job is to serve, with its configs.

    """

    def __init__(self) -> None:
        self.routes: dict[str, tuple[str, ...]] = {}
        self.wanted: dict[str, Configs] = {}
        self._fleet = Fleet()
        self._heard: dict[str, JobReport] = {}
        self._job_at: dict[str, str] = {}
        self._seen: dict[str, dict[str, ReplicaSighting]] = {}
        self._wanted_by: dict[str, frozenset[str]] = {}

    def take(self, fleet: Fleet, heard: Mapping[str, JobReport]) -> set[str]:
        """Brings the table up to date; returns the names of models that may differ."""
        before, self._fleet = self._fleet, fleet
        changed = set(replaced(before.models, fleet.models))
        if fleet.jobs is not before.jobs and fleet.jobs != before.jobs:
            changed |= {*fleet.models, *self._seen}
            self._job_at = {
                at: name for name, job in fleet.jobs.items() for at in job.addresses
            }
            self.wanted = {name: self.wanted.get(name, {}) for name in fleet.jobs}
        was, self._heard = self._heard, dict(heard)
        for address in {**was, **heard}:
            then = was.get(address, NOTHING)
            now = heard.get(address, NOTHING)
            if then is not now:
                changed |= self._follow(address, then, now)
        self._do_anew(changed)
        return changed

    def names(self) -> Collection[str]:
        """Returns the models that are wanted or reported."""
        return {*self._fleet.models, *self._seen}

    def sighting(self, name: str) -> ModelSighting | None:
        """Returns how a model fares; None if it is neither wanted nor reported."""
        model, found = self._fleet.models.get(name), {}
        for address, seen in self._seen.get(name, {}).items():
            heard = self._heard[address]
            if heard.is_silent:
                continue
            knows = model is not None and heard.told.get(name) == model.config
            generation = model.generation if model is not None and knows else 0
            found[address] = replace(seen, generation=generation)
        return found if found or model is not None else None

    def _follow(self, address: str, then: JobReport, now: JobReport) -> set[str]:
        """Takes what a server says now; returns the models for which that differs."""
        was, models = then.models, now.models
        changed = set(replaced(was, models))
        for name in changed:
            seen = self._seen.setdefault(name, {})
            if name in models:
                seen[address] = models[name]
            else:
                seen.pop(address, None)
                if not seen:
                    del self._seen[name]
        if then.told is not now.told:
            changed.update(replaced(then.told, now.told))
        if then.is_silent != now.is_silent:
            changed |= {*models, *self.wanted.get(self._job_at.get(address, ""), ())}
        return changed

    def _do_anew(self, changed: Iterable[str]) -> None:
        edits: dict[str, dict[str, str | None]] = {}
        for name in changed:
            model, seen = self._fleet.models.get(name), self._seen.get(name, {})
            answering = sorted(at for at, s in seen.items() if s.primary is not None)
            said = [each for each in answering if not self._heard[each].is_silent]
            jobs: frozenset[str] = frozenset()
            if model is None:
                self.routes.pop(name, None)
            elif not model.num_replicas:
                self.routes[name] = ()
            else:
                jobs = self._jobs_of(model, said)
                stay = [each for each in said if self._job_at.get(each) in jobs]
                self.routes[name] = tuple(stay or said or answering)
            for job in self._wanted_by.pop(name, jobs) | jobs:
                config = model.config if model and job in jobs else None
                if self.wanted.get(job, {}).get(name) != config:
                    edits.setdefault(job, {})[name] = config
            if jobs:
                self._wanted_by[name] = jobs
        for job, edit in edits.items():
            if job in self.wanted:
                both = {**self.wanted[job], **edit}
                self.wanted[job] = {n: c for n, c in both.items() if c is not None}

    def _jobs_of(
        self, model: HostedModel, answering: Collection[str]
    ) -> frozenset[str]:
        """Returns the jobs that should have a model, by who answers for it."""
        placed = model.placed
        jobs = {each for each in placed if each in self._fleet.jobs}
        if not placed and model.is_temp:
            return frozenset()  # others need what it had
        if not placed or not all(self._is_there(each, answering) for each in placed):
            # A model of Prod without any place, too, goes on serving where it serves.
            jobs |= {self._job_at[each] for each in answering if each in self._job_at}
        return frozenset(jobs)

    def _is_there(self, job: str, answering: Collection[str]) -> bool:
        """Whether all replicas of a job that report anything answer for a model."""
        found = self._fleet.jobs.get(job)
        reporting = [
            each
            for each in (found.addresses if found else ())
            if not self._heard.get(each, NOTHING).is_silent
        ]
        return bool(reporting) and all(each in answering for each in reporting)
