"""What became of a config, as a whole and model by model. Values."""

from __future__ import annotations

from dataclasses import dataclass

from tfs.core.errors import ServingError
from tfs.server.config.running_config import ModelChange


@dataclass(frozen=True, slots=True)
class ModelOutcome:
    """What a new config means for one model. Immutable.

    Attributes:
        change: How its effective config changes.
        error: What is wrong in the config, or with what came of it; None if nothing.
        available: Versions that answer requests now, newest first.
        pending: Versions on the way there, newest first.

    """

    change: ModelChange
    error: ServingError | None = None
    available: tuple[int, ...] = ()
    pending: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ConfigOutcome:
    """What became of a config. Immutable.

    Attributes:
        error: Why it was refused, or what is not available although it was accepted.
        is_applied: Whether it is in force.
        models: By name, with those that leave.
        notes: Sentences for people.

    """

    error: ServingError | None
    is_applied: bool
    models: tuple[ModelOutcome, ...] = ()
    notes: tuple[str, ...] = ()
