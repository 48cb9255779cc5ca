"""The outcome of a config, as a whole and model by model. Values."""

from __future__ import annotations

from dataclasses import dataclass

from tfs.core.errors import ServingError
from tfs.server.config.running_config import ModelChange


@dataclass(frozen=True, slots=True)
class ModelOutcome:
    """What a new config means for one model. Immutable.

    Attributes:
        change: How its effective config changes.
        error: What is wrong in the config, or with its models; None if nothing is.
        available: Versions that answer requests now, newest first.
        pending: Versions that will answer soon, newest first.

    """

    change: ModelChange
    error: ServingError | None = None
    available: tuple[int, ...] = ()
    pending: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigOutcome:
    """The outcome of a config. Immutable.

    Attributes:
        error: Why it was refused, or what is not available although it was accepted.
        is_applied: Whether it is in force.
        models: By name, including models that are removed.
        notes: Sentences for people.

    """

    error: ServingError | None
    is_applied: bool
    models: tuple[ModelOutcome, ...] = ()
    notes: tuple[str, ...] = ()
