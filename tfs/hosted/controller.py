"""Takes users' commands, and decides which serving job has which model.

Every command is one transaction on the store. It edits the wanted state and places all
models anew. It is refused as a whole if anything that was asked for would have no
place. Routers and synchronizers follow the store; nothing here calls a server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from google.protobuf import text_format

from tfs.core.errors import (
    AlreadyExists,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
)
from tfs.hosted.fleet import Fleet, HostedModel, Job
from tfs.hosted.fleet_store import FleetStore, Revision
from tfs.hosted.placement import place
from tfs.proto._pool import POOL
from tfs.proto._text_form import ParseError, read_text
from tfs.proto.tensorflow_serving.config import model_server_config_pb2
from tfs.proto.tfs.v1 import model_config_pb2

ModelConfig = model_server_config_pb2.ModelConfig

# A smaller relative difference is not worth another placement.
_LEARNS_FROM: Final = 0.2


class Controller:
    """The commands of a fleet. Thread-safe; each blocks on the store.

    Args:
        store: Where the wanted state is kept.
        check: Raises a ``ServingError`` for a model's config that no server would
            accept, because a server refuses its whole config if one model is wrong.
        estimate: Returns the bytes of a version below a base path, or raises.

    """

    def __init__(
        self,
        store: FleetStore,
        check: Callable[[ModelConfig], object],
        estimate: Callable[[str], int],
    ) -> None:
        self._store = store
        self._check = check
        self._estimate = estimate

    def fleet(self) -> Fleet:
        """Returns the present wanted state."""
        return self._store.read().fleet

    # -- serving jobs -------------------------------------------------------------

    def add_job(self, job: Job) -> Revision:
        """Adds or changes a serving job; models without a place may be placed there."""

        def edit(fleet: Fleet) -> Fleet:
            return _placed(replace(fleet, jobs={**fleet.jobs, job.address: job}))

        return self._store.change(f"add-job {job.address}", edit)

    def remove_job(self, address: str, *, force: bool = False) -> Revision:
        """Moves a job's models elsewhere; the job is removed when they answer there.

        Args:
            address: The address of the job.
            force: Whether it is removed at once, even if its models have no other
                place.

        Raises:
            NotFound: There is no such job.
            ResourceExhausted: Some of its models would have no place.

        """

        def edit(fleet: Fleet) -> Fleet:
            job = fleet.jobs.get(address)
            if job is None:
                raise NotFound(f"no serving job {address}")
            if force:
                return _placed(_without(fleet, address))
            jobs = {**fleet.jobs, address: replace(job, is_leaving=True)}
            return self._complete(fleet, replace(fleet, jobs=jobs))

        return self._store.change(f"remove-job {address}", edit)

    def drop_job(self, address: str) -> Revision:
        """Removes a job that was leaving and has no models any more."""

        def edit(fleet: Fleet) -> Fleet:
            job = fleet.jobs.get(address)
            if job is None or not job.is_leaving:
                return fleet
            return _placed(_without(fleet, address))

        return self._store.change(f"{address} left", edit)

    def note_job(self, address: str, *, is_down: bool) -> Revision:
        """Notes that a job stopped or resumed answering; moves models if necessary."""

        def edit(fleet: Fleet) -> Fleet:
            job = fleet.jobs.get(address)
            if job is None or job.is_down == is_down:
                return fleet
            jobs = {**fleet.jobs, address: replace(job, is_down=is_down)}
            return _placed(replace(fleet, jobs=jobs))

        return self._store.change(f"{address} is {'down' if is_down else 'up'}", edit)

    # -- models -------------------------------------------------------------------

    def add_model(
        self,
        config: ModelConfig,
        *,
        memory_bytes: int = 0,
        min_replicas: int = 1,
        max_replicas: int = 0,
        partition: str = "",
    ) -> Revision:
        """Adds a model, with a place for each of its replicas.

        Args:
            config: Its config, in the form for a server.
            memory_bytes: How much one replica takes; 0 has it estimated, and measured
                later.
            min_replicas: The number of jobs that serve it.
            max_replicas: The most jobs that may serve it under load; 0 means
                ``min_replicas``.
            partition: The partition of jobs on which it may be placed.

        Raises:
            AlreadyExists: There is a model with that name.
            InvalidArgument: No server would accept the config.
            FailedPrecondition: Its memory cannot be estimated from here.
            ResourceExhausted: There is no room for it.

        """
        self._check(config)
        size = memory_bytes or self._room_for(config, self._estimate(config.base_path))
        model = HostedModel(
            config.name,
            _text(config),
            size,
            is_estimate=not memory_bytes,
            min_replicas=min_replicas,
            max_replicas=max_replicas or min_replicas,
            partition=partition,
            num_replicas=min_replicas,
        )

        def edit(fleet: Fleet) -> Fleet:
            if model.name in fleet.models:
                raise AlreadyExists(f"model {model.name} is served already")
            models = {**fleet.models, model.name: model}
            return self._complete(fleet, replace(fleet, models=models))

        return self._store.change(f"add-model {model.name}", edit)

    def remove_model(self, name: str) -> Revision:
        """Removes a model.

        Raises:
            NotFound: There is none with that name.

        """

        def edit(fleet: Fleet) -> Fleet:
            _required(fleet, name)
            models = {each: m for each, m in fleet.models.items() if each != name}
            return _placed(replace(fleet, models=models))

        return self._store.change(f"remove-model {name}", edit)

    def scale(self, name: str, min_replicas: int, max_replicas: int = 0) -> Revision:
        """Changes the number of jobs that serve a model, as a hint before load comes.

        Raises:
            NotFound: There is no such model.
            ResourceExhausted: There is no room for so many.

        """

        def edit(fleet: Fleet) -> Fleet:
            model = _required(fleet, name)
            most = max_replicas or min_replicas
            now = min(max(model.num_replicas, min_replicas), most)
            return self._complete(
                fleet,
                _with(
                    fleet,
                    replace(
                        model,
                        min_replicas=min_replicas,
                        max_replicas=most,
                        num_replicas=now,
                    ),
                ),
            )

        return self._store.change(f"scale {name}", edit)

    def follow_load(self, wanted: Mapping[str, int]) -> Revision:
        """Gives models the number of replicas that load asks for, within their limits.

        Replicas without room are left out without an error, because no user asked for
        them.
        """

        def edit(fleet: Fleet) -> Fleet:
            for name, number in wanted.items():
                model = fleet.models.get(name)
                if model is None:
                    continue
                now = min(max(number, model.min_replicas), model.max_replicas)
                grown = _with(fleet, replace(model, num_replicas=now))
                if len(grown.placement[name]) == now:
                    fleet = grown
            return fleet

        said = ", ".join(f"{name} to {number}" for name, number in wanted.items())
        return self._store.change(f"load: {said}", edit)

    def set_traffic(
        self, name: str, traffic: model_config_pb2.Traffic | None, why: str
    ) -> Revision:
        """Changes which versions of a model answer: canary, promotion, rollback.

        Args:
            name: The model.
            traffic: The new value in its config; None removes it, so that the newest
                version answers.
            why: The command, for the history.

        Raises:
            NotFound: There is no such model.
            InvalidArgument: No server would accept it.

        """

        def edit(fleet: Fleet) -> Fleet:
            model = _required(fleet, name)
            config = read_config(model)
            config.ClearField("traffic")
            if traffic is not None:
                config.traffic.CopyFrom(traffic)
            self._check(config)
            changed = replace(model, config=_text(config))
            return replace(fleet, models={**fleet.models, name: changed})

        return self._store.change(f"{why} {name}", edit)

    def learn(self, measured: Mapping[str, int]) -> Revision:
        """Replaces estimates by what jobs have measured.

        Args:
            measured: For each model that is loaded somewhere, the bytes of its largest
                version.

        """

        def edit(fleet: Fleet) -> Fleet:
            for name, version_bytes in measured.items():
                model = fleet.models.get(name)
                if model is None or not model.is_estimate or version_bytes <= 0:
                    continue
                size = self._room_for(read_config(model), version_bytes)
                if abs(size - model.memory_bytes) > _LEARNS_FROM * model.memory_bytes:
                    fleet = _with(fleet, replace(model, memory_bytes=size))
            return fleet

        return self._store.change("memory as measured", edit)

    def _room_for(self, config: ModelConfig, version_bytes: int) -> int:
        """Returns how much memory a replica takes while one version replaces another."""
        gap = model_config_pb2.RESOURCE_PRESERVING
        policy = config.model_version_policy
        at_once = max(
            policy.latest.num_versions, len(policy.specific.versions), 1
        ) + config.traffic.HasField("canary")
        return version_bytes * (at_once + (config.transition != gap))

    def _complete(self, before: Fleet, after: Fleet) -> Fleet:
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


def read_config(model: HostedModel) -> ModelConfig:
    """Returns a model's config as a message."""
    config = ModelConfig()
    read_text(model.config, config)
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


def _text(config: ModelConfig) -> str:
    return text_format.MessageToString(
        config, as_one_line=True, descriptor_pool=POOL
    ).strip()


def _required(fleet: Fleet, name: str) -> HostedModel:
    model = fleet.models.get(name)
    if model is None:
        known = ", ".join(sorted(fleet.models)) or "none; tfs hosted add-model adds one"
        raise NotFound(f"no model {name}; there are: {known}")
    return model


def _with(fleet: Fleet, model: HostedModel) -> Fleet:
    return _placed(replace(fleet, models={**fleet.models, model.name: model}))


def _without(fleet: Fleet, address: str) -> Fleet:
    jobs = {each: job for each, job in fleet.jobs.items() if each != address}
    return replace(fleet, jobs=jobs)


def _placed(fleet: Fleet) -> Fleet:
    found = place(fleet.models, fleet.jobs, fleet.placement)
    return replace(fleet, placement=found.jobs)


def _shortfall(fleet: Fleet, name: str) -> int:
    model = fleet.models.get(name)
    if model is None:
        return 0
    return model.num_replicas - len(fleet.placement.get(name, ()))
