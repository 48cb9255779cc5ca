"""The wanted state of a fleet: its serving jobs, its models, and where these are placed.

It is a value: every change makes a new one. What is really loaded is in
:mod:`~tfs.hosted.reports`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from google.protobuf import text_format

from tfs.core.errors import InvalidArgument
from tfs.proto._pool import POOL
from tfs.proto._text_form import ParseError, read_text
from tfs.proto.tensorflow_serving.config import model_server_config_pb2
from tfs.proto.tfs.v1 import model_config_pb2

ModelConfig = model_server_config_pb2.ModelConfig

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Job:
    """A serving job: equal ``tfs serve`` processes, its replicas, with the same models."""

    name: str  # the address of its one replica if somebody else runs it
    memory_bytes: int  # what the models of one replica may take together
    partition: str = ""  # models are placed only in their own: "gpu", "eu"
    num_replicas: int = 1
    cpus: int = 0  # that each replica may use; 0 for all
    is_ours: bool = False  # the fleet starts its replicas
    # The gRPC ports of its replicas, "HOST:PORT" or "unix:/path"; of ours those started.
    addresses: tuple[str, ...] = ()
    is_down: bool = False  # no replica answered for so long that others take its place
    is_leaving: bool = False  # it is removed once others have its models
    generation: int = 1  # counts what users changed
    min_replicas: int = 0
    max_replicas: int = 0  # when models want so many; 0 for num_replicas
    zone: str = ""  # copies of a model go to different zones, if there is room
    is_temp: bool = False  # it has models of Temp alone, and no replica without one

    @property
    def takes_models(self) -> bool:
        """Whether models may be placed on it."""
        return not (self.is_down or self.is_leaving)

    @property
    def may_go(self) -> bool:
        """Whether some of its replicas, or all, have to go when it has no model."""
        may_shrink = self.max_replicas and self.num_replicas > self.min_replicas
        return self.is_leaving or bool(may_shrink)

    def __post_init__(self) -> None:
        _check(self, self.max_replicas or self.num_replicas)


@dataclass(frozen=True, slots=True)
class HostedModel:
    """A model that users asked to be served, on whichever job."""

    name: str
    config: str  # its ModelConfig as text, with name and base path
    memory_bytes: int  # what one replica takes while one version replaces another
    is_estimate: bool = True  # or was measured; else its owner stated it
    min_replicas: int = 1  # 0: a model of Temp that has none while nobody asks for it
    max_replicas: int = 1  # when load asks for so many
    partition: str = ""  # of the jobs on which it may be placed
    num_replicas: int = 1  # now; it is placed on jobs until they have so many together
    placed: tuple[
        str, ...
    ] = ()  # the jobs on which it should be; none: it fits nowhere
    generation: int = 1  # counts what users changed
    is_on_demand: bool = False  # servers load it at its first request
    cpus: float = 0.0  # that one replica keeps busy; 0 if nobody said so
    owner: str = ""  # the identity whose quota it counts against
    is_temp: bool = False  # it belongs to the instance Temp, and has what Prod leaves
    # Nobody said on how many servers it is; there are no more than its partition has.
    copies_by_default: bool = False
    # Versions that crashed when they were tried, and how; its config excludes them.
    quarantined: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        _check(self, self.max_replicas)


def _check(made: Job | HostedModel, most: int) -> None:
    """Raises InvalidArgument for values that make no sense."""
    if not made.name:
        raise InvalidArgument("a job or a model needs a name")
    if made.memory_bytes <= 0:
        raise InvalidArgument(f"{made.name}: memory must be positive")
    if not 0 <= made.cpus < math.inf:
        raise InvalidArgument(f"{made.name}: cpus are 0 or more: {made.cpus}")
    now, may_rest = made.num_replicas, made.is_temp and made.max_replicas
    least = made.min_replicas if made.max_replicas else now
    if not (0 if may_rest else 1) <= least <= now <= most:
        raise InvalidArgument(
            f"{made.name}: replicas are at least 1 (0 to N for Temp), and at most "
            f"max_replicas ({least} to {most}, now {now})"
        )


@dataclass(frozen=True, slots=True)
class Fleet:
    """The wanted state at one moment: jobs and models by name. Immutable."""

    jobs: Mapping[str, Job] = field(default_factory=dict)
    models: Mapping[str, HostedModel] = field(default_factory=dict)

    def num_placed(self, name: str) -> int:
        """Returns how many servers a model is placed on."""
        return sum(self.jobs[job].num_replicas for job in self.models[name].placed)

    def packing(self) -> Mapping[str, tuple[str, ...]]:
        """Returns the jobs on which each model should be."""
        return {name: model.placed for name, model in self.models.items()}

    def changed(
        self,
        models: Mapping[str, HostedModel | None] | None = None,
        jobs: Mapping[str, Job | None] | None = None,
    ) -> Fleet:
        """Returns one with these, without those that are None; itself if none differ."""
        made = Fleet(merged(self.jobs, jobs or {}), merged(self.models, models or {}))
        return self if made == self else made


def news(of: Mapping[str, T], changes: Mapping[str, T | None]) -> dict[str, T | None]:
    """Returns those of some changes that change anything; None is for what goes."""
    return {name: each for name, each in changes.items() if each != of.get(name)}


def merged(of: Mapping[str, T], changes: Mapping[str, T | None]) -> Mapping[str, T]:
    """Returns the same object where nothing changes: whoever looks on sees that at once."""
    if not (changed := news(of, changes)):
        return of
    both = {**of, **changed}
    return {name: each for name, each in both.items() if each is not None}


def replaced(
    before: Mapping[str, object], after: Mapping[str, object]
) -> Mapping[str, None]:
    """Returns the names of what is another object, or gone."""
    if before is after:
        return {}
    found = {name: None for name, each in after.items() if before.get(name) is not each}
    return found | dict.fromkeys(before.keys() - after.keys())


def room_for(config: ModelConfig, version_bytes: int) -> int:
    """Returns how much memory a replica takes while one version replaces another."""
    gap = model_config_pb2.RESOURCE_PRESERVING
    policy = config.model_version_policy
    at_once = max(
        policy.latest.num_versions, len(policy.specific.versions), 1
    ) + config.traffic.HasField("canary")
    return version_bytes * (at_once + (config.transition != gap))


def read_config(text: str) -> ModelConfig:
    """Reads the fields of a model's config, as in a config file.

    Raises InvalidArgument for a syntax error, or an unknown field.
    """
    config = ModelConfig()
    config.CopyFrom(_parsed(text))
    return config


@functools.lru_cache(maxsize=1 << 14)
def _parsed(text: str) -> ModelConfig:
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
