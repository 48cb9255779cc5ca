"""The changes of a fleet that users and reconcilers ask for: pure functions over a fleet.

An edit that was asked for is refused as a whole if anything would have no place for it.
Nothing here calls a server or the store.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from google.protobuf import text_format

from tfs.core.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from tfs.hosted.fleet import Fleet, HostedModel, Job
from tfs.hosted.fleet_state import Edit
from tfs.hosted.placement import place
from tfs.proto._pool import POOL
from tfs.proto._text_form import ParseError, read_text
from tfs.proto.tensorflow_serving.config import model_server_config_pb2
from tfs.proto.tfs.v1 import model_config_pb2

ModelConfig = model_server_config_pb2.ModelConfig

# A smaller relative difference is not worth another placement.
_LEARNS_FROM: Final = 0.2


# -- serving jobs ---------------------------------------------------------------------


def put_job(job: Job) -> Edit:
    """Adds or changes a serving job; models without a place may be placed there."""

    def apply(fleet: Fleet) -> Fleet:
        known = fleet.jobs.get(job.name)
        if known is not None and known.is_ours != job.is_ours:
            raise AlreadyExists(f"there is another kind of job {job.name}")
        made = job
        if known is not None:
            addresses = known.addresses if known.is_ours else job.addresses
            made = replace(job, addresses=addresses, generation=known.generation + 1)
        return _placed(replace(fleet, jobs={**fleet.jobs, job.name: made}))

    return Edit(f"add-job {job.name}", apply, job=job.name)


def drain_job(name: str, *, force: bool = False) -> Edit:
    """Moves a job's models elsewhere; the job is removed when they answer there.

    Refused with ResourceExhausted if some of its models would have no place. With
    ``force`` it is removed at once all the same.
    """

    def apply(fleet: Fleet) -> Fleet:
        job = fleet.jobs.get(name)
        if job is None:
            raise NotFound(f"no serving job {name}")
        if force:
            return _placed(_without(fleet, name))
        leaving = replace(job, is_leaving=True, generation=job.generation + 1)
        return _complete(fleet, replace(fleet, jobs={**fleet.jobs, name: leaving}))

    return Edit(f"remove-job {name}", apply, job=name)


def drop_job(name: str) -> Edit:
    """Removes a job that was leaving and has no models any more."""

    def apply(fleet: Fleet) -> Fleet:
        job = fleet.jobs.get(name)
        if job is None or not job.is_leaving:
            return fleet
        return _placed(_without(fleet, name))

    return Edit(f"{name} left", apply, job=name)


def note_job(name: str, *, is_down: bool) -> Edit:
    """Notes that a job stopped or resumed answering; moves models if necessary."""

    def apply(fleet: Fleet) -> Fleet:
        job = fleet.jobs.get(name)
        if job is None or job.is_down == is_down:
            return fleet
        jobs = {**fleet.jobs, name: replace(job, is_down=is_down)}
        return _placed(replace(fleet, jobs=jobs))

    return Edit(f"{name} is {'down' if is_down else 'up'}", apply, job=name)


def set_addresses(name: str, addresses: tuple[str, ...]) -> Edit:
    """Notes where the replicas of a job listen that the fleet runs itself."""

    def apply(fleet: Fleet) -> Fleet:
        job = fleet.jobs.get(name)
        if job is None or job.addresses == addresses:
            return fleet
        changed = replace(job, addresses=addresses)
        return replace(fleet, jobs={**fleet.jobs, name: changed})

    return Edit(f"{name} has {len(addresses)} replicas", apply, job=name)


# -- models ---------------------------------------------------------------------------


def add_model(model: HostedModel) -> Edit:
    """Adds a model, with a place for each of its replicas.

    Refused with AlreadyExists if there is one with that name, and with
    ResourceExhausted if there is no room.
    """

    def apply(fleet: Fleet) -> Fleet:
        if model.name in fleet.models:
            raise AlreadyExists(f"model {model.name} is served already")
        models = {**fleet.models, model.name: model}
        return _complete(fleet, replace(fleet, models=models))

    return Edit(f"add-model {model.name}", apply, model=model.name)


def update_model(
    name: str, update: Callable[[HostedModel], HostedModel], why: str
) -> Edit:
    """Replaces a model by what ``update`` makes of it, with a place for each replica.

    Refused with NotFound, and as :func:`add_model` is.
    """

    def apply(fleet: Fleet) -> Fleet:
        model = required(fleet, name)
        after = replace(update(model), generation=model.generation + 1)
        return _complete(fleet, _with(fleet, after))

    return Edit(f"{why} {name}", apply, model=name)


def remove_model(name: str) -> Edit:
    """Removes a model; NotFound if there is none with that name."""

    def apply(fleet: Fleet) -> Fleet:
        required(fleet, name)
        models = {each: m for each, m in fleet.models.items() if each != name}
        return _placed(replace(fleet, models=models))

    return Edit(f"remove-model {name}", apply, model=name)


def add_version(name: str, version: int) -> Edit:
    """Tells of a version that is in a model's base path; a pinned model refuses it."""

    def apply(fleet: Fleet) -> Fleet:
        model = required(fleet, name)
        traffic = read_config(model).traffic
        if traffic.primary and version not in (traffic.primary, traffic.canary.version):
            raise FailedPrecondition(
                f"version {traffic.primary} of {name} is pinned, so version {version} "
                "does not answer: put it on trial (canary), or promote it"
            )
        changed = replace(model, generation=model.generation + 1)
        return replace(fleet, models={**fleet.models, name: changed})

    return Edit(f"add-version {version} of {name}", apply, name, version=version)


def set_traffic(name: str, traffic: model_config_pb2.Traffic | None, why: str) -> Edit:
    """Changes which versions of a model answer: canary, promotion, rollback.

    None lets the newest version answer.
    """

    def update(model: HostedModel) -> HostedModel:
        config = read_config(model)
        config.ClearField("traffic")
        if traffic is not None:
            config.traffic.CopyFrom(traffic)
        return replace(model, config=config_text(config))

    def apply(fleet: Fleet) -> Fleet:
        model = required(fleet, name)
        changed = replace(update(model), generation=model.generation + 1)
        return replace(fleet, models={**fleet.models, name: changed})

    version = None
    if traffic is not None:
        on_trial = traffic.HasField("canary")
        version = traffic.canary.version if on_trial else traffic.primary
    return Edit(f"{why} {name}", apply, model=name, version=version)


def follow_load(wanted: Mapping[str, int]) -> Edit:
    """Gives models the number of replicas that load asks for, within their limits.

    Replicas without room are left out without an error, because no user asked for
    them.
    """

    def apply(fleet: Fleet) -> Fleet:
        for name, number in wanted.items():
            model = fleet.models.get(name)
            if model is None:
                continue
            now = min(max(number, model.min_replicas), model.max_replicas)
            for each in (
                *range(now, model.num_replicas, -1),
                min(now, model.num_replicas),
            ):
                changed = _with(fleet, replace(model, num_replicas=each))
                changed = _with_jobs_for(changed, name)
                if each <= model.num_replicas or changed.num_placed(name) >= each:
                    fleet = changed
                    break
        return fleet

    said = ", ".join(f"{name} to {number}" for name, number in wanted.items())
    return Edit(f"load: {said}", apply)


def learn(measured: Mapping[str, int]) -> Edit:
    """Replaces estimates by what jobs have measured: bytes of the largest version."""

    def apply(fleet: Fleet) -> Fleet:
        for name, version_bytes in measured.items():
            model = fleet.models.get(name)
            if model is None or not model.is_estimate or version_bytes <= 0:
                continue
            size = room_for(read_config(model), version_bytes)
            if abs(size - model.memory_bytes) > _LEARNS_FROM * model.memory_bytes:
                fleet = _with(fleet, replace(model, memory_bytes=size))
        return fleet

    return Edit("memory as measured", apply)


# -- configs --------------------------------------------------------------------------


def room_for(config: ModelConfig, version_bytes: int) -> int:
    """Returns how much memory a replica takes while one version replaces another."""
    gap = model_config_pb2.RESOURCE_PRESERVING
    policy = config.model_version_policy
    at_once = max(
        policy.latest.num_versions, len(policy.specific.versions), 1
    ) + config.traffic.HasField("canary")
    return version_bytes * (at_once + (config.transition != gap))


def read_config(model: HostedModel) -> ModelConfig:
    """Returns a model's config as a message."""
    config = ModelConfig()
    config.CopyFrom(_parsed(model.config))
    return config


@functools.lru_cache(maxsize=1 << 14)
def _parsed(text: str) -> ModelConfig:
    config = ModelConfig()
    read_text(text, config)
    return config


def parse_model_config(text: str) -> ModelConfig:
    """Reads the fields of a model's config, as in a config file.

    Raises:
        InvalidArgument: A syntax error, or an unknown field.

    """
    config = ModelConfig()
    try:
        read_text(text, config)
    except ParseError as error:
        raise InvalidArgument(f"the model's config: {error}") from error
    return config


def config_text(config: ModelConfig) -> str:
    """Returns a config as one line that :func:`read_config` reads."""
    return text_format.MessageToString(
        config, as_one_line=True, descriptor_pool=POOL
    ).strip()


def required(fleet: Fleet, name: str) -> HostedModel:
    """Returns a model; NotFound, with the names there are, if there is none."""
    model = fleet.models.get(name)
    if model is None:
        known = ", ".join(sorted(fleet.models)) or "none; tfs hosted add-model adds one"
        raise NotFound(f"no model {name}; there are: {known}")
    return model


def _complete(before: Fleet, after: Fleet) -> Fleet:
    """Returns ``after`` with its models placed.

    Raises:
        ResourceExhausted: A model that had a place, or asks for one, has none.

    """
    missing = place(after.models, after.jobs, after.placement)
    worse = {
        name: short
        for name, short in missing.shortfall.items()
        if short > _shortfall(before, name)
    }
    if worse:
        model = after.models[min(worse)]
        raise ResourceExhausted(
            f"no room for {worse[model.name]} of {model.num_replicas} replicas of "
            f"{model.name}, {model.memory_bytes / (1 << 20):.1f} MiB each"
            + (f", in partition {model.partition!r}" if model.partition else "")
            + "; add a serving job"
        )
    return replace(after, placement=missing.jobs)


def _with(fleet: Fleet, model: HostedModel) -> Fleet:
    return _placed(replace(fleet, models={**fleet.models, model.name: model}))


def _with_jobs_for(fleet: Fleet, name: str) -> Fleet:
    """Gives the jobs of a model as many replicas as their models want, within limits."""
    jobs = dict(fleet.jobs)
    for job in (jobs[each] for each in fleet.placement.get(name, ()) if each in jobs):
        if not job.max_replicas:
            continue
        wanted = max(
            model.num_replicas
            for model in fleet.models.values()
            if job.name in fleet.placement[model.name]
        )
        number = min(max(wanted, job.min_replicas), job.max_replicas)
        jobs[job.name] = replace(job, num_replicas=number)
    return _placed(replace(fleet, jobs=jobs))


def _without(fleet: Fleet, name: str) -> Fleet:
    jobs = {each: job for each, job in fleet.jobs.items() if each != name}
    return replace(fleet, jobs=jobs)


def _placed(fleet: Fleet) -> Fleet:
    found = place(fleet.models, fleet.jobs, fleet.placement)
    return replace(fleet, placement=found.jobs)


def _shortfall(fleet: Fleet, name: str) -> int:
    model = fleet.models.get(name)
    if model is None or name not in fleet.placement:
        return 0
    return max(model.num_replicas - fleet.num_placed(name), 0)
