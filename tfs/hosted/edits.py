"""The changes of a fleet that users and reconcilers ask for: pure functions over a fleet.

An edit that was asked for is refused as a whole if anything would have no place for it.
Nothing here calls a server or the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from tfs.core.errors import (
    AlreadyExists,
    FailedPrecondition,
    NotFound,
    ResourceExhausted,
)
from tfs.hosted.fleet import (
    Fleet,
    HostedModel,
    Job,
    ModelConfig,
    config_text,
    read_config,
    room_for,
)
from tfs.hosted.fleet_state import Edit
from tfs.hosted.packing import num_copies, num_servers, pack, pack_one
from tfs.hosted.probes import UNPROBED, Probed, judged
from tfs.hosted.snapshot import merged
from tfs.proto.tfs.v1 import model_config_pb2

# A smaller relative difference is not worth another packing.
_LEARNS_FROM: Final = 0.2


def put_job(job: Job) -> Edit:
    """Adds or changes a serving job; models without a place may be placed there."""

    def apply(fleet: Fleet) -> Fleet:
        known = fleet.jobs.get(job.name)
        if known is None:
            return _placed(_with_jobs(fleet, {job.name: job}))
        if known.is_ours != job.is_ours:
            raise AlreadyExists(f"there is another kind of job {job.name}")
        addresses = known.addresses if known.is_ours else job.addresses
        made = replace(job, addresses=addresses, generation=known.generation + 1)
        return _placed(_with_jobs(fleet, {job.name: made}))

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
            return _placed(_with_jobs(fleet, {name: None}))
        leaving = replace(job, is_leaving=True, generation=job.generation + 1)
        return _complete(fleet, _with_jobs(fleet, {name: leaving}))

    return Edit(f"remove-job {name}", apply, job=name)


def empty_job(name: str) -> Edit:
    """Removes a job without models that leaves; another gets its fewest replicas."""

    def apply(fleet: Fleet) -> Fleet:
        job = fleet.jobs.get(name)
        is_used = any(name in model.placed for model in fleet.models.values())
        if job is None or not job.may_go or is_used:
            return fleet
        if job.is_leaving:
            return _placed(_with_jobs(fleet, {name: None}))
        resting = replace(job, num_replicas=job.min_replicas, is_down=False)
        return _with_jobs(fleet, {name: resting})

    return Edit(f"{name} has no models", apply, job=name)


def note_jobs(is_down: Mapping[str, bool]) -> Edit:
    """Notes which jobs stopped or resumed answering; moves models if necessary."""

    def apply(fleet: Fleet) -> Fleet:
        changed = {
            name: replace(fleet.jobs[name], is_down=each)
            for name, each in is_down.items()
            if name in fleet.jobs and fleet.jobs[name].is_down != each
        }
        if not changed:
            return fleet
        return _placed(_with_jobs(fleet, changed))

    said = [f"{name} is {'down' if each else 'up'}" for name, each in is_down.items()]
    more = f", and {len(said) - 3} more changed" if len(said) > 3 else ""
    return Edit(", ".join(said[:3]) + more, apply)


def set_addresses(name: str, addresses: tuple[str, ...]) -> Edit:
    """Notes where the replicas of a job listen that the fleet runs itself."""

    def apply(fleet: Fleet) -> Fleet:
        job = fleet.jobs.get(name)
        if job is None or job.addresses == addresses:
            return fleet
        return _with_jobs(fleet, {name: replace(job, addresses=addresses)})

    return Edit(f"{name} has {len(addresses)} replicas", apply, job=name)


def add_model(model: HostedModel) -> Edit:
    """Adds a model; AlreadyExists if it is there, ResourceExhausted if there is no room."""

    def apply(fleet: Fleet) -> Fleet:
        if model.name in fleet.models:
            raise AlreadyExists(f"model {model.name} is served already")
        at = pack_one(model, fleet)
        if at is not None:
            # Nobody else moves, which is soon found out among ten thousand.
            alone = _with_models(fleet, {model.name: replace(model, placed=at)})
            if _sized(alone) == fleet.jobs:
                return alone
        return _complete(fleet, _with_models(fleet, {model.name: model}))

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
        after = _with_models(fleet, {name: changed})
        if replace(model, config="", generation=0, quarantined={}) == replace(
            changed, config="", generation=0, quarantined={}
        ):
            return after  # it takes what it took, wherever it is
        # A hint comes before the load does: its job grows now.
        return _complete(fleet, after)

    return Edit(f"{why} {name}", apply, model=name, version=version)


def remove_model(name: str) -> Edit:
    """Removes a model; NotFound if there is none with that name."""

    def apply(fleet: Fleet) -> Fleet:
        required(fleet, name)
        return _placed(_with_models(fleet, {name: None}))

    return Edit(f"remove-model {name}", apply, model=name)


def add_version(name: str, version: int, probed: Probed = UNPROBED) -> Edit:
    """Tells of a version that is in a model's base path; a pinned model refuses it.

    One that crashed when it was tried is quarantined. What it took replaces an estimate.
    """

    def update(model: HostedModel) -> HostedModel:
        traffic = read_config(model).traffic
        if traffic.primary and version not in (traffic.primary, traffic.canary.version):
            raise FailedPrecondition(
                f"version {traffic.primary} of {name} is pinned, so version {version} "
                "does not answer: put it on trial (canary), or promote it"
            )
        return _with_size(judged(model, version, probed), probed.version_bytes)

    edit = update_model(name, update, f"add-version {version} of", version)
    if not probed.crash:
        return edit
    return replace(edit, why=f"{edit.why}; quarantined: {probed.crash}")


def set_traffic(name: str, traffic: model_config_pb2.Traffic | None, why: str) -> Edit:
    """Changes which versions of a model answer; None: the newest."""

    def update(model: HostedModel) -> HostedModel:
        return replace(model, config=config_text(with_traffic(model, traffic)))

    version = None
    if traffic is not None:
        on_trial = traffic.HasField("canary")
        version = traffic.canary.version if on_trial else traffic.primary
    return update_model(name, update, why, version)


def follow_load(wanted: Mapping[str, int]) -> Edit:
    """Gives models the replicas that load asks for, as far as limits and room allow."""

    def apply(fleet: Fleet) -> Fleet:
        for name, number in wanted.items():
            model = fleet.models.get(name)
            if model is None:
                continue
            now = min(max(number, model.min_replicas), model.max_replicas)
            fewest = min(now, model.num_replicas)
            for each in (*range(now, model.num_replicas, -1), fewest):
                changed = _placed(
                    _with_models(fleet, {name: replace(model, num_replicas=each)})
                )
                if each <= model.num_replicas or changed.num_placed(name) >= each:
                    fleet = changed
                    break
        return fleet

    said = ", ".join(f"{name} to {number}" for name, number in wanted.items())
    return Edit(f"load: {said}", apply)


def wake(name: str) -> Edit:
    """Gives a model one replica that has none because nobody asked for it."""

    def apply(fleet: Fleet) -> Fleet:
        model = fleet.models.get(name)
        if model is None or model.num_replicas:
            return fleet
        return _placed(_with_models(fleet, {name: replace(model, num_replicas=1)}))

    return Edit(f"a request for {name}", apply, model=name)


def learn(measured: Mapping[str, int]) -> Edit:
    """Replaces estimates by what jobs have measured: bytes of the largest version."""

    def apply(fleet: Fleet) -> Fleet:
        learned = {
            name: _with_size(fleet.models[name], version_bytes)
            for name, version_bytes in measured.items()
            if name in fleet.models
        }
        if all(fleet.models[name] is each for name, each in learned.items()):
            return fleet
        return _placed(_with_models(fleet, learned))

    return Edit("memory as measured", apply)


def required(fleet: Fleet, name: str) -> HostedModel:
    """Returns a model; NotFound, with the names there are, if there is none."""
    model = fleet.models.get(name)
    if model is None:
        known = ", ".join(sorted(fleet.models)) or "none; tfs hosted add-model adds one"
        raise NotFound(f"no model {name}; there are: {known}")
    return model


def with_traffic(
    model: HostedModel, traffic: model_config_pb2.Traffic | None
) -> ModelConfig:
    """Returns a model's config with such traffic."""
    config = read_config(model)
    config.ClearField("traffic")
    if traffic is not None:
        config.traffic.CopyFrom(traffic)
    return config


def _with_size(model: HostedModel, version_bytes: int) -> HostedModel:
    """Returns a model with what a version takes, if that was measured and is news."""
    if not model.is_estimate or version_bytes <= 0:
        return model
    size = room_for(read_config(model), version_bytes)
    if abs(size - model.memory_bytes) <= _LEARNS_FROM * model.memory_bytes:
        return model
    return replace(model, memory_bytes=size)


def _with_models(fleet: Fleet, models: Mapping[str, HostedModel | None]) -> Fleet:
    return replace(fleet, models=merged(fleet.models, models))


def _with_jobs(fleet: Fleet, jobs: Mapping[str, Job | None]) -> Fleet:
    return replace(fleet, jobs=merged(fleet.jobs, jobs))


def _complete(before: Fleet, after: Fleet) -> Fleet:
    """Returns ``after`` with its models placed.

    Raises ResourceExhausted where one that had a place, or asks for one, has none; those of
    Temp that are not asked for give way.
    """
    asked = after.models
    after, shortfall = _settled(after)
    servers = num_servers(before.jobs)
    for name in sorted(shortfall):
        short, model, was = shortfall[name], after.models[name], before.models.get(name)
        if model.is_temp and asked[name] is was:
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
    return after


def _placed(fleet: Fleet) -> Fleet:
    return _settled(fleet)[0]


def _settled(fleet: Fleet) -> tuple[Fleet, Mapping[str, int]]:
    """Places models, and gives jobs the replicas that these want; says what is short."""
    fleet, shortfall = _packed(fleet)
    jobs = _sized(fleet)
    if jobs != fleet.jobs:
        fleet, shortfall = _packed(replace(fleet, jobs=jobs))
    return fleet, shortfall


def _packed(fleet: Fleet) -> tuple[Fleet, Mapping[str, int]]:
    """Places models; one that goes nowhere else is the same object as before."""
    found, models = pack(fleet), fleet.models
    moved = {
        name: replace(models[name], placed=at)
        for name, at in found.jobs.items()
        if set(at) != set(models[name].placed)
    }
    return _with_models(fleet, moved), found.shortfall


def _sized(fleet: Fleet) -> Mapping[str, Job]:
    """Gives jobs as many replicas as the busiest of their models wants, within limits."""
    if not any(job.max_replicas > job.min_replicas for job in fleet.jobs.values()):
        return fleet.jobs
    servers = num_servers(fleet.jobs)
    wanted: dict[str, int] = {}
    for model in fleet.models.values():
        for each in model.placed:
            wanted[each] = max(wanted.get(each, 0), num_copies(model, servers))
    jobs = dict(fleet.jobs)
    for name, number in wanted.items():
        job = jobs[name]
        if job.max_replicas:
            number = min(max(number, job.min_replicas), job.max_replicas)
            jobs[name] = replace(job, num_replicas=number)
    return jobs
