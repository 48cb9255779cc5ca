"""How the load of a version is going, in more detail than its state says."""

from __future__ import annotations

from dataclasses import dataclass

from tfs.core.errors import ServingError
from tfs.core.resources import ResourceAllocation


@dataclass(frozen=True, slots=True)
class LoadStatus:
    """A load at one moment. Immutable.

    Attributes:
        num_failures: Failed attempts since the version's memory was last estimated.
        next_attempt_s: When it is tried again, by the manager's clock; None if that is
            not planned. A load may have ended and still have a next attempt, if an old
            version stands in for it meanwhile.
        error: Why the last attempt failed, while another one is planned; or why the
            load ended.
        duration_s: How long the successful attempt took; None before it.
        reserved: What is reserved for the version; None if there is no limit, and once
            it is unloaded.
        is_deferred: Whether it waits for memory.
        refused: What it takes, if it was refused because others have that memory now, so
            that it is tried again when there is room.

    """

    num_failures: int = 0
    next_attempt_s: float | None = None
    error: ServingError | None = None
    duration_s: float | None = None
    reserved: ResourceAllocation | None = None
    is_deferred: bool = False
    refused: ResourceAllocation | None = None
