"""The running config: a base with overrides laid over it. Pure.

An override holds until it is dropped, whatever base comes. One that cannot hold, because
its model is not configured or would be invalid with it, is set aside, and says why.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tfs.core.errors import InvalidArgument, NotFound, ServingError
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.server.config.overrides import (
    ModelConfig,
    Overrides,
    changed_fields,
    overridden,
)
from tfs.server.config.server_config import (
    Message,
    ServerConfig,
    check_platform,
    read_model,
)
from tfs.server.model_settings import ModelSettings


class Origin(enum.Enum):
    """Where a base came from, numbered as ``tfs.v1.ConfigOrigin``."""

    COMMAND_LINE = 1
    CONFIG_FILE = 2
    RELOAD_REQUEST = 3
    APPLY_CONFIG = 4
    MODEL_REPOSITORY = 5
    FLEET = 6

    @property
    def survives_restart(self) -> bool:
        """Whether a restarted server would have this base again."""
        return self not in (Origin.RELOAD_REQUEST, Origin.APPLY_CONFIG)


@dataclass(frozen=True, slots=True)
class Base:
    """A config as it was given. Immutable.

    Attributes:
        config: The config, validated without overrides.
        origin: Where it came from.
        path: The file or directory that it came from; "" for none.
        since_s: When it was accepted, in seconds since the epoch.

    """

    config: ServerConfig
    origin: Origin
    path: str = ""
    since_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunningConfig:
    """The config in force. Immutable.

    Attributes:
        base: The last base that was accepted.
        overrides: All overrides, in force or not, by model.
        effective: The base with the overrides that are in force laid over it.
        why_inactive: Why the override of a model is not in force, by model.

    """

    base: Base
    overrides: Overrides
    effective: ServerConfig
    why_inactive: Mapping[str, str] = field(default_factory=dict)

    @property
    def active(self) -> Collection[str]:
        """Models whose override is in force."""
        return self.overrides.keys() - self.why_inactive.keys()

    def model(self, name: str) -> ModelSettings:
        """Returns what holds for a model.

        Raises:
            InvalidArgument: No name was given.
            NotFound: It is not configured.

        """
        if not name:
            raise InvalidArgument("the request names no model; set its name")
        if name not in self.effective.models:
            raise NotFound(f"no model {name} in the configuration")
        return self.effective.models[name]

    def model_message(self, name: str) -> ModelConfig | None:
        """Returns a model's effective config; None if it is not configured."""
        return _by_name(self.effective.message).get(name)


def laid_over(
    base: Base, overrides: Overrides, platforms: Collection[str], made: str = ""
) -> RunningConfig:
    """Returns what runs with a valid base and these overrides; changes neither.

    Where no override is in force, the effective config is the base's own object.

    Args:
        base: The base.
        overrides: The overrides, by model.
        platforms: Names of the existing platforms.
        made: The model whose override is being made, if one is.

    Raises:
        ServingError: The override of ``made`` makes its model's config invalid.

    """
    found = _by_name(base.config.message) if overrides else {}
    laid: dict[str, ModelConfig] = {}
    models = dict(base.config.models) if overrides else {}
    why_inactive = {}
    for name, override in overrides.items():
        if name not in found:
            why_inactive[name] = f"no model {name} in the configuration"
            continue
        try:
            config = overridden(found[name], override.config)
            settings = read_model(config)
            check_platform(settings, platforms)
        except ServingError as error:
            if name == made:
                raise
            why_inactive[name] = (
                f"it makes the configuration invalid: {error.message}; tfs config reset "
                f"{name} drops it"
            )
            continue
        laid[name], models[name] = config, settings
    if not laid:
        return RunningConfig(base, overrides, base.config, why_inactive)
    message = Message()
    message.CopyFrom(base.config.message)
    for model in message.model_config_list.config:
        if model.name in laid:
            model.CopyFrom(laid[model.name])
    return RunningConfig(base, overrides, ServerConfig(models, message), why_inactive)


def changes(
    old: RunningConfig | None, new: RunningConfig
) -> tuple[pb.ModelOutcome, ...]:
    """Returns how every model changes, by name, including models that are removed."""
    before = {} if old is None else _by_name(old.effective.message)
    after = _by_name(new.effective.message)
    found = []
    for name in sorted({*before, *after}):
        change = pb.ModelOutcome(model=name, overridden=name in new.active)
        if name not in after:
            change.change = pb.ModelOutcome.REMOVED
        elif name not in before:
            change.change = pb.ModelOutcome.ADDED
        elif before[name] != after[name]:
            change.changed_fields[:] = changed_fields(before[name], after[name])
            change.change = pb.ModelOutcome.CHANGED
        found.append(change)
    return tuple(found)


def _by_name(message: Message) -> dict[str, ModelConfig]:
    return {model.name: model for model in message.model_config_list.config}
