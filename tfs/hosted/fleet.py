"""The wanted state of a fleet: its serving jobs, its models, and their placement.

It is a value: every change makes a new one. What is really loaded is in
:mod:`~tfs.hosted.job_report`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tfs.core.errors import DataLoss, InvalidArgument

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Job:
    """A serving job: one ``tfs serve`` process.

    Attributes:
        address: The address of its gRPC port, "HOST:PORT" or "unix:/path".
        memory_bytes: How much its models may take together.
        partition: The partition it belongs to ("gpu", "eu"); models are placed only in
            their own.
        is_down: Whether it did not answer for so long that others take its place.
        is_leaving: Whether it should be removed once others have its models.

    """

    address: str
    memory_bytes: int
    partition: str = ""
    is_down: bool = False
    is_leaving: bool = False

    @property
    def takes_models(self) -> bool:
        """Whether models may be placed on it."""
        return not (self.is_down or self.is_leaving)

    def __post_init__(self) -> None:
        if not self.address:
            raise InvalidArgument("a job needs an address")
        if self.memory_bytes <= 0:
            raise InvalidArgument(f"{self.address}: memory must be positive")


@dataclass(frozen=True, slots=True)
class HostedModel:
    """A model that users asked to be served, on whichever job.

    Attributes:
        name: The name that requests use.
        config: Its ``ModelConfig`` as text, including name and base path.
        memory_bytes: How much one replica takes while one version replaces another.
        is_estimate: Whether that was estimated; False: its owner stated it.
        min_replicas: The least number of jobs that serve it.
        max_replicas: The most jobs that may serve it when load asks for it.
        partition: The partition of jobs on which it may be placed.
        num_replicas: The number of jobs that should serve it now.

    """

    name: str
    config: str
    memory_bytes: int
    is_estimate: bool = True
    min_replicas: int = 1
    max_replicas: int = 1
    partition: str = ""
    num_replicas: int = 1

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidArgument("a model needs a name")
        if self.memory_bytes <= 0:
            raise InvalidArgument(f"{self.name}: memory must be positive")
        if not 1 <= self.min_replicas <= self.num_replicas <= self.max_replicas:
            raise InvalidArgument(
                f"{self.name}: replicas are at least 1, and at most max_replicas "
                f"({self.min_replicas} to {self.max_replicas}, now {self.num_replicas})"
            )


@dataclass(frozen=True, slots=True)
class Fleet:
    """The wanted state at one moment. Immutable.

    Attributes:
        jobs: By address.
        models: By name.
        placement: The jobs on which each model should be, in no particular order; none
            for a model that fits nowhere.

    """

    jobs: Mapping[str, Job] = field(default_factory=dict)
    models: Mapping[str, HostedModel] = field(default_factory=dict)
    placement: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_json(self) -> str:
        """Returns a text that :meth:`from_json` reads."""
        return json.dumps(
            {
                "format": _FORMAT,
                "jobs": [dataclasses.asdict(each) for each in self.jobs.values()],
                "models": [dataclasses.asdict(each) for each in self.models.values()],
                "placement": {name: list(at) for name, at in self.placement.items()},
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Fleet:
        """Reads what :meth:`to_json` wrote.

        Raises:
            DataLoss: The text is something else.

        """
        try:
            form = json.loads(text)
            if form["format"] != _FORMAT:
                raise ValueError(f"format {form['format']} is not {_FORMAT}")
            jobs = [Job(**each) for each in form["jobs"]]
            models = [HostedModel(**each) for each in form["models"]]
            return cls(
                {job.address: job for job in jobs},
                {model.name: model for model in models},
                {str(name): tuple(at) for name, at in form["placement"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataLoss(f"the fleet's state cannot be read: {error}") from error
