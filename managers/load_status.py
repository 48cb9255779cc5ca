"""How the load of a version goes, for whoever asks; states say only where it stands."""

from __future__ import annotations

from dataclasses import dataclass

from tfs.core.errors import ServingError
from tfs.core.resources import ResourceAllocation


@dataclass(frozen=True, slots=True)
class LoadStatus:
    """A load at one moment. Immutable.

    Attributes:
        num_failures: Attempts that failed, since it was last known what it takes.
        next_attempt_s: When it is tried again, by the manager's clock; None if that
            is not planned. Of one that has ended, too, where something stands in for it
            that goes for each attempt.
        error: Why the last attempt failed, while another is planned; or why it ended.
        duration_s: How long the attempt took that succeeded; None before.
        reserved: What is reserved for the version; None without a limit, and once it
            is unloaded.
        is_deferred: Whether it waits for memory.

    """

    num_failures: int = 0
    next_attempt_s: float | None = None
    error: ServingError | None = None
    duration_s: float | None = None
    reserved: ResourceAllocation | None = None
    is_deferred: bool = False
