"""The running config: base, overrides, and the result of both. Pure.

Every change makes a new :class:`RunningConfig` from the old one, or is refused. The
server core swaps it in when everything else is ready.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from tfs.core.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ServingError,
)
from tfs.server.config.overrides import (
    ModelConfig,
    Override,
    Overrides,
    changed_fields,
    invalid_with,
    lay_over,
    overridden,
)
from tfs.server.config.server_config import (
    Message,
    ServerConfig,
    all_of,
    check_change,
    check_kind_change,
    read_config,
    read_model,
)
from tfs.server.model_settings import ModelSettings

Hold = Callable[[ModelSettings], int | None]
"""Returns the version that is held as the primary of a model that names none."""


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


class Change(enum.Enum):
    """What a new base means for a model, numbered as ``ModelOutcome.Change``."""

    UNCHANGED = 0
    ADDED = 1
    CHANGED = 2
    REMOVED = 3


@dataclass(frozen=True, slots=True)
class ModelChange:
    """How one model's effective config changes. Immutable."""

    name: str
    change: Change
    fields: tuple[str, ...] = ()
    is_overridden: bool = False


@dataclass(frozen=True, slots=True)
class RunningConfig:
    """The config in force. Immutable.

    Attributes:
        base: The last base that was accepted.
        overrides: All overrides that are laid over the base, active or not, by model.
        held: The version that is held as the primary of a model whose trials began
            without a named one; the effective config names it.
        unheld: Models with a trial of which no version is known yet that could be held.
        effective: The base with the active overrides laid over it.
        active: Models whose override is in force.
        why_inactive: Why the override of a model is not in force, by model.
        tolerated: Models whose override was invalid from the start: it is kept aside
            and does not prevent other changes.

    """

    base: Base
    overrides: Overrides
    effective: ServerConfig
    active: frozenset[str] = frozenset()
    why_inactive: Mapping[str, str] = field(default_factory=dict)
    tolerated: frozenset[str] = frozenset()
    held: Mapping[str, int] = field(default_factory=dict)
    unheld: frozenset[str] = frozenset()

    def model_message(self, name: str) -> ModelConfig | None:
        """Returns a model's effective config; None if it is not configured."""
        return find_model(self.effective.message, name)


def _hold_nothing(settings: ModelSettings) -> int | None:
    del settings
    return None


def first_running(
    base: Base,
    overrides: Overrides,
    platforms: Collection[str],
    hold: Hold = _hold_nothing,
) -> RunningConfig:
    """Returns the config that a server starts with.

    An override that would make the config invalid is kept but not in force, because a
    server must start with its config file.

    Raises:
        InvalidArgument: The base itself asks for a platform that does not exist.

    """
    check_platforms(base.config, platforms)
    return _laid(base, overrides, platforms, frozenset(overrides), hold)


def with_held(
    running: RunningConfig, platforms: Collection[str], hold: Hold
) -> RunningConfig:
    """Returns the same config after looking again at which primaries are held."""
    return _laid(running.base, running.overrides, platforms, running.tolerated, hold)


def with_base(
    running: RunningConfig,
    base: Base,
    platforms: Collection[str],
    hold: Hold = _hold_nothing,
) -> RunningConfig:
    """Returns the running config after a new base; the overrides stay.

    An override that does not fit makes the base invalid, so that the caller hears of
    it. For a base that comes from a directory of models there is no caller: there the
    override is set aside, and the other models are served.

    Raises:
        InvalidArgument: A platform is not there, or base and override do not fit.
        FailedPrecondition: A model's platform would change.

    """
    check_kind_change(base.config.message)
    check_platforms(base.config, platforms)
    check_change(running.effective, base.config)
    is_given = base.origin is not Origin.MODEL_REPOSITORY
    tolerated = running.tolerated if is_given else frozenset(running.overrides)
    changed = _laid(base, running.overrides, platforms, tolerated, hold)
    check_change(running.effective, changed.effective)
    return changed


def with_override(
    running: RunningConfig,
    name: str,
    override: Override | None,
    platforms: Collection[str],
    hold: Hold = _hold_nothing,
) -> RunningConfig:
    """Returns the running config after one model's override is set, or dropped.

    Raises:
        ServingError: The result would be invalid.

    """
    overrides = {k: each for k, each in running.overrides.items() if k != name}
    if override is not None:
        overrides[name] = override
    tolerated = running.tolerated - {name}
    changed = _laid(running.base, overrides, platforms, tolerated, hold, made=name)
    check_change(running.effective, changed.effective)
    return changed


def _laid(
    base: Base,
    overrides: Overrides,
    platforms: Collection[str],
    tolerated: frozenset[str],
    hold: Hold,
    made: str = "",
) -> RunningConfig:
    """Lays overrides over a base; an invalid one is set aside if it is tolerated.

    ``made`` is the model whose override is being made; if that is invalid, it is an
    error.
    """
    bad: dict[str, str] = {}
    for model in base.config.message.model_config_list.config:
        override = overrides.get(model.name)
        if override is None:
            continue
        try:
            settings = read_model(overridden(model, override.config))
            check_platforms(ServerConfig({model.name: settings}, Message()), platforms)
        except ServingError as error:
            if model.name == made:
                raise
            if model.name not in tolerated:
                raise invalid_with(model.name, error) from error
            bad[model.name] = f"it makes the configuration invalid: {error.message}"
    usable = {name: each for name, each in overrides.items() if name not in bad}
    laid = lay_over(base.config.message, usable)
    # What a base says that ends with the server is no reason to forget it.
    dropped = laid.redundant if base.origin.survives_restart else frozenset[str]()
    effective = read_config(laid.message) if laid.active else base.config
    held = {
        name: version
        for name, settings in effective.models.items()
        if settings.primary is None and (version := hold(settings)) is not None
    }
    return RunningConfig(
        base,
        {name: each for name, each in overrides.items() if name not in dropped},
        _naming(effective, held) if held else effective,
        frozenset(laid.active) | (laid.redundant - dropped),
        {**laid.inactive, **bad},
        frozenset(bad),
        held,
        frozenset(
            name
            for name, settings in effective.models.items()
            if settings.canary and settings.primary is None and name not in held
        ),
    )


def _naming(config: ServerConfig, primaries: Mapping[str, int]) -> ServerConfig:
    """Returns the config with these primaries named."""
    message = Message()
    message.CopyFrom(config.message)
    for model in message.model_config_list.config:
        if model.name in primaries:
            model.traffic.primary = primaries[model.name]
    named = {
        name: replace(config.models[name], primary=version)
        for name, version in primaries.items()
    }
    return ServerConfig({**config.models, **named}, message)


def check_platforms(config: ServerConfig, platforms: Collection[str]) -> None:
    """Checks that the server has what the config asks for.

    Raises:
        InvalidArgument: Platforms are not there; names the model of each.

    """
    known = ", ".join(sorted(filter(None, platforms)))
    errors = {
        name: InvalidArgument(
            f"Model {name} requests unsupported platform {settings.platform}; "
            f"known: {known}"
        )
        for name, settings in config.models.items()
        if settings.platform not in platforms
    }
    if errors:
        raise all_of(errors)


def changes(old: RunningConfig | None, new: RunningConfig) -> tuple[ModelChange, ...]:
    """Returns how every model changes, by name, including models that are removed."""
    before = {} if old is None else _by_name(old.effective.message)
    after = _by_name(new.effective.message)
    found = []
    for name in sorted({*before, *after}):
        fields: tuple[str, ...] = ()
        if name not in after:
            change = Change.REMOVED
        elif name not in before:
            change = Change.ADDED
        else:
            if before[name] != after[name]:
                fields = changed_fields(before[name], after[name])
            change = Change.CHANGED if fields else Change.UNCHANGED
        found.append(ModelChange(name, change, fields, name in new.active))
    return tuple(found)


def find_model(message: Message, name: str) -> ModelConfig | None:
    """Returns the config of a model in a message; None if it has none."""
    return _by_name(message).get(name)


def require_model(running: RunningConfig | None, name: str) -> ModelConfig:
    """Returns a model's effective config; the time grows with the number of models.

    Raises:
        InvalidArgument: No name was given.
        NotFound: It is not configured.

    """
    found = require_configured(running, name).model_message(name)
    assert found is not None  # the models were read from this message
    return found


def require_configured(running: RunningConfig | None, name: str) -> RunningConfig:
    """Returns the config after checking that it has the model; takes no time.

    Raises:
        InvalidArgument: No name was given.
        NotFound: It is not configured.

    """
    if not name:
        raise InvalidArgument("the request names no model; set its name")
    if running is None:
        raise FailedPrecondition(
            "the server has no configuration yet; retry when it has started"
        )
    if name not in running.effective.models:
        raise NotFound(f"no model {name} in the configuration")
    return running


def _by_name(message: Message) -> dict[str, ModelConfig]:
    return {model.name: model for model in message.model_config_list.config}
