"""What the config says of one model, as values: checked when they are read.

Canaries, guards, validation and what is logged are the messages themselves, which nobody
changes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from sources.version_policy import All, Latest, Specific, VersionPolicy
from tfs.proto.tensorflow_serving.config import logging_config_pb2
from tfs.proto.tfs.v1 import model_config_pb2
from tfs.runtime.placement import Backend

DETECT: Final = ""
"""Value of a model's platform that has it detected from the version's files."""

_NO_VERSIONS: Final[frozenset[int]] = frozenset()  # one for all models

MAX_INTERPRETERS: Final = 1024
"""Most interpreters of one model, and of a server."""

MAX_INTRA_OP_THREADS: Final = 1024
"""Most threads of one call. torch starts as many as it is told to: 200,000 ended the
server."""


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """Where and how a model runs. Immutable.

    Attributes:
        backend: How its interpreters are made.
        must_isolate: Whether it runs outside the server process or not at all.
        num_interpreters: How many, up to ``MAX_INTERPRETERS``; 0 leaves the choice to
            the server.
        device: "cpu", "cuda" or "cuda:0".
        intra_op_threads: Threads of one operation, up to ``MAX_INTRA_OP_THREADS``; 0
            leaves the choice to the server.
        gates_examples: Whether a version that fails on its own example, or ends its
            process at every call of a signature, must not take the place of one that
            serves.

    """

    backend: Backend = Backend.AUTO
    must_isolate: bool = False
    num_interpreters: int = 0
    device: str = "cpu"
    intra_op_threads: int = 0
    gates_examples: bool = True

    @property
    def fingerprint(self) -> str:
        """One word for all of it; "" if nothing is asked for."""
        return "" if self == _PLAIN else repr(self)


_PLAIN: Final = RuntimeSettings()


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What the config says of one model. Immutable.

    Attributes:
        name: The model's name.
        base_path: Absolute path or URL of the directory that holds its versions.
        platform: Name of a platform, or :data:`DETECT`.
        policy: Which of the versions are aspired.
        labels: Version by label.
        primary: Version served to requests that name none; None is the latest
            available one that is not the canary.
        canary: The version on trial, which is never the primary; None without one.
        keeps_resources: Whether a swap unloads the old version first.
        is_on_demand: Whether its first request loads it.
        runtime: Where and how it runs.
        logging: Which of its requests are written down; None is none.
        validation: What a version must pass before it serves; None is nothing.
        excluded_versions: Versions that are passed over as if they were not there.

    """

    name: str
    base_path: str
    platform: str = DETECT
    policy: VersionPolicy = field(default_factory=Latest)
    labels: Mapping[str, int] = field(default_factory=dict)
    primary: int | None = None
    canary: model_config_pb2.Canary | None = None
    keeps_resources: bool = False
    is_on_demand: bool = False
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)
    logging: logging_config_pb2.LoggingConfig | None = None
    validation: model_config_pb2.Validation | None = None
    excluded_versions: frozenset[int] = _NO_VERSIONS

    @property
    def pinned_versions(self) -> frozenset[int]:
        """Versions aspired whatever the policy says."""
        canary = None if self.canary is None else self.canary.version
        pinned = [v for v in (self.primary, canary) if v is not None]
        return frozenset(pinned) - self.excluded_versions if pinned else _NO_VERSIONS

    @property
    def labelled_versions(self) -> frozenset[int]:
        """Versions aspired if they are there; none if the policy asks for no version."""
        if not self.labels or self.policy == Specific(()):
            return _NO_VERSIONS
        return frozenset(self.labels.values()) - self.excluded_versions

    def aspired_policy(self, rejected: Collection[int] = ()) -> VersionPolicy:
        """Returns the policy for the source.

        ``latest`` passes over what a guard rejected, and over a canary while there is no
        explicit primary: the versions that it names beside it are the primary, and must
        not be unloaded for its sake.
        """
        besides = self.excluded_versions.union(rejected)
        if self.canary is not None and self.primary is None:
            besides |= {self.canary.version}
        if besides and isinstance(self.policy, Latest):
            return Latest(self.policy.num, besides)
        if self.excluded_versions and isinstance(self.policy, All):
            return All(self.excluded_versions)
        if self.excluded_versions and isinstance(self.policy, Specific):
            named = self.policy.versions
            return Specific(tuple(v for v in named if v not in self.excluded_versions))
        return self.policy
