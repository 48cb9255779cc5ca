"""The changes of a fleet that users and reconcilers ask for: pure functions over a fleet.

An edit that was asked for is refused as a whole if anything would have no place for it.
Nothing here calls a server or the store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

from tfs.core.errors import (
    AlreadyExists,
    FailedPrecondition,
    NotFound,
    ResourceExhausted,
)
from tfs.hosted.fleet import Fleet, HostedModel, Job, read_config, replaced, room_for
from tfs.hosted.fleet_state import Edit
from tfs.hosted.packing import Packing, num_copies, num_servers, pack
from tfs.hosted.probes import UNPROBED, Probed, judged

# A smaller relative difference is not worth another packing.
_LEARNS_FROM: Final = 0.2


def put_job(job: Job) -> Edit:
    """Adds or changes a serving job; models without a place may be placed there."""

    def apply(fleet: Fleet) -> Fleet:
        known, made = fleet.jobs.get(job.name), job
        if known is not None:
            if known.is_ours != job.is_ours:
                raise AlreadyExists(f"there is another kind of job {job.name}")
            addresses = known.addresses if known.is_ours else job.addresses
            made = replace(job, addresses=addresses, generation=known.generation + 1)
        return _placed(fleet, fleet.changed(jobs={job.name: made}))

    return Edit(f"add-job {job.name}", apply, job=job.name)


def drain_job(name: str, *, force: bool = False) -> Edit:
    """Moves a job's models elsewhere; the job is removed when they answer there.

    Refused with ResourceExhausted if there is no room; ``force`` removes it at once.
    """

    def apply(fleet: Fleet) -> Fleet:
        job = fleet.jobs.get(name)
        if job is None:
            raise NotFound(f"no serving job {name}")
        if force:
            return _placed(fleet, fleet.changed(jobs={name: None}))
        leaving = replace(job, is_leaving=True, generation=job.generation + 1)
        return _placed(fleet, fleet.changed(jobs={name: leaving}), must_fit=True)

    return Edit(f"remove-job {name}", apply, job=name)


def empty_job(name: str) -> Edit:
    """Removes a job without models that leaves; another gets its fewest replicas."""

    def apply(fleet: Fleet) -> Fleet:
        job = fleet.jobs.get(name)
        is_used = any(name in model.placed for model in fleet.models.values())
        if job is None or not job.may_go or is_used:
            return fleet
        if job.is_leaving:
            return _placed(fleet, fleet.changed(jobs={name: None}))
        resting = replace(job, num_replicas=job.min_replicas, is_down=False)
        return fleet.changed(jobs={name: resting})

    return Edit(f"{name} has no models", apply, job=name)


def note_jobs(is_down: Mapping[str, bool]) -> Edit:
    """Notes which jobs stopped or resumed answering; moves models if necessary."""

    def apply(fleet: Fleet) -> Fleet:
        known = is_down.keys() & fleet.jobs
        noted = {n: replace(fleet.jobs[n], is_down=is_down[n]) for n in known}
        return _placed(fleet, fleet.changed(jobs=noted))

    said = [f"{name} is {'down' if each else 'up'}" for name, each in is_down.items()]
    more = f", and {len(said) - 3} more changed" if len(said) > 3 else ""
    return Edit(", ".join(said[:3]) + more, apply)


def set_addresses(name: str, addresses: tuple[str, ...]) -> Edit:
    """Notes where the replicas of a job listen that the fleet runs itself."""

    def apply(fleet: Fleet) -> Fleet:
        job = fleet.jobs.get(name)
        if job is None:
            return fleet
        return fleet.changed(jobs={name: replace(job, addresses=addresses)})

    return Edit(f"{name} has {len(addresses)} replicas", apply, job=name)


def add_model(model: HostedModel) -> Edit:
    """Adds a model; AlreadyExists if it is there, ResourceExhausted if there is no room."""

    def apply(fleet: Fleet) -> Fleet:
        if model.name in fleet.models:
            raise AlreadyExists(f"model {model.name} is served already")
        return _placed(fleet, fleet.changed({model.name: model}), must_fit=True)

    asked = 0 if model.copies_by_default else model.min_replicas
    return Edit(f"add-model {model.name}", apply, model=model.name, num_servers=asked)


def update_model(
    name: str,
    update: Callable[[HostedModel], HostedModel],
    why: str,
    version: int | None = None,
) -> Edit:
    """Replaces a model by what ``update`` makes of it; NotFound, or no room for that."""

    def apply(fleet: Fleet) -> Fleet:
        model = required(fleet, name)
        changed = replace(update(model), generation=model.generation + 1)
        if replace(model, config="", generation=0, quarantined={}) == replace(
            changed, config="", generation=0, quarantined={}
        ):
            return fleet.changed({name: changed})  # it takes what it took
        # A hint comes before the load does: its job grows now.
        return _placed(fleet, fleet.changed({name: changed}), must_fit=True)

    return Edit(f"{why} {name}", apply, model=name, version=version)


def remove_model(name: str) -> Edit:
    """Removes a model; NotFound if there is none with that name."""

    def apply(fleet: Fleet) -> Fleet:
        required(fleet, name)
        return _placed(fleet, fleet.changed({name: None}))

    return Edit(f"remove-model {name}", apply, model=name)


def add_version(name: str, version: int, probed: Probed = UNPROBED) -> Edit:
    """Tells of a version that is in a model's base path; a pinned model refuses it.

    One that crashed when it was tried is quarantined. What it took replaces an estimate.
    """

    def update(model: HostedModel) -> HostedModel:
        traffic = read_config(model.config).traffic
        if traffic.primary and version not in (traffic.primary, traffic.canary.version):
            raise FailedPrecondition(
                f"version {traffic.primary} of {name} is pinned, so version {version} "
                "does not answer: put it on trial (canary), or promote it"
            )
        return _with_size(judged(model, version, probed), probed.version_bytes)

    edit = update_model(name, update, f"add-version {version} of", version)
    crash = f"; quarantined: {probed.crash}" if probed.crash else ""
    return replace(edit, why=edit.why + crash, probes=version)


def follow_load(wanted: Mapping[str, int]) -> Edit:
    """Gives models the replicas that load asks for, as far as limits and room allow."""

    def apply(fleet: Fleet) -> Fleet:
        for name, number in wanted.items():
            model = fleet.models.get(name)
            if model is None:
                continue
            number = min(max(number, model.min_replicas), model.max_replicas)
            after = _resized(fleet, model, number)
            there = max(after.num_placed(name), model.num_replicas)
            fleet = after if there >= number else _resized(fleet, model, there)
        return fleet

    said = ", ".join(f"{name} to {number}" for name, number in wanted.items())
    return Edit(f"load: {said}", apply)


def wake(name: str) -> Edit:
    """Gives a model one replica that has none because nobody asked for it."""

    def apply(fleet: Fleet) -> Fleet:
        model = fleet.models.get(name)
        if model is None or model.num_replicas:
            return fleet
        return _resized(fleet, model, 1)

    return Edit(f"a request for {name}", apply, model=name)


def learn(measured: Mapping[str, int]) -> Edit:
    """Replaces estimates by what jobs have measured: bytes of the largest version."""

    def apply(fleet: Fleet) -> Fleet:
        known = measured.keys() & fleet.models
        learned = {n: _with_size(fleet.models[n], measured[n]) for n in known}
        return _placed(fleet, fleet.changed(learned))

    return Edit("memory as measured", apply)


def required(fleet: Fleet, name: str) -> HostedModel:
    """Returns a model; NotFound, with the names there are, if there is none."""
    model = fleet.models.get(name)
    if model is None:
        known = ", ".join(sorted(fleet.models)) or "none; tfs hosted add-model adds one"
        raise NotFound(f"no model {name}; there are: {known}")
    return model


def _resized(fleet: Fleet, model: HostedModel, number: int) -> Fleet:
    resized = replace(model, num_replicas=number)
    return _placed(fleet, fleet.changed({model.name: resized}))


def _with_size(model: HostedModel, version_bytes: int) -> HostedModel:
    """Returns a model with what a version takes, if that was measured and is news."""
    if not model.is_estimate or version_bytes <= 0:
        return model
    size = room_for(read_config(model.config), version_bytes)
    if abs(size - model.memory_bytes) <= _LEARNS_FROM * model.memory_bytes:
        return model
    return replace(model, memory_bytes=size)


def _placed(before: Fleet, after: Fleet, *, must_fit: bool = False) -> Fleet:
    """Returns ``after`` with its models placed, and with jobs as large as these want.

    Raises ResourceExhausted, if it ``must_fit``, where a model that had a place, or asks
    for one, has none; those of Temp that are not asked for give way.
    """
    if after is before:
        return before
    found = pack(after)
    sized = _sized(found.fleet)
    if sized is not found.fleet:
        found = pack(sized)
    if must_fit:
        _check_room(before, found, replaced(before.models, after.models))
    return found.fleet


def _check_room(before: Fleet, found: Packing, asked: Collection[str]) -> None:
    after, servers = found.fleet, num_servers(before.jobs)
    for name in sorted(found.shortfall):
        short, model, was = (
            found.shortfall[name],
            after.models[name],
            before.models.get(name),
        )
        if model.is_temp and name not in asked:
            continue
        if was and short <= num_copies(was, servers) - before.num_placed(name):
            continue
        number = num_copies(model, num_servers(after.jobs))
        raise ResourceExhausted(
            f"no room for {short} of {number} replicas of {name}, "
            f"{model.memory_bytes / (1 << 20):.1f} MiB each"
            + (f", in partition {model.partition!r}" if model.partition else "")
            + "; add a serving job"
            + (", or ask for fewer replicas" if model.copies_by_default else "")
        )


def _sized(fleet: Fleet) -> Fleet:
    """Gives jobs as many replicas as the busiest of their models wants, within limits."""
    servers = num_servers(fleet.jobs)
    wanted: dict[str, int] = {}
    for model in fleet.models.values():
        for each in model.placed:
            wanted[each] = max(wanted.get(each, 0), num_copies(model, servers))
    jobs = {}
    for name, number in wanted.items():
        job = fleet.jobs[name]
        if job.max_replicas:
            number = min(max(number, job.min_replicas), job.max_replicas)
            jobs[name] = replace(job, num_replicas=number)
    return fleet.changed(jobs=jobs)
