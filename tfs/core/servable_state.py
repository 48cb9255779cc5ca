"""The published life of a version, as status, CLI and logs see it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tfs.core.errors import ServingError
from tfs.core.servable_id import ServableId


class ManagerState(enum.Enum):
    """Where a version stands, numbered as ``ModelVersionStatus.State``.

    Unlike the loader harness's states these are promises to readers: LOADING is
    published before loading starts, AVAILABLE only after the version can be
    requested, UNLOADING before it stops being requestable, END after its memory
    is free or it failed (TensorFlow Serving: core/servable_state.h).
    """

    START = 10
    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


@dataclass(frozen=True, slots=True)
class ServableState:
    """A version's state at one moment. Immutable.

    Attributes:
        id: The version.
        manager_state: Where it stands.
        error: Why it failed; None while healthy.
        reason: Why it is in this state: the source's or policy's words, an edit,
            a quarantine.
        since_s: When it entered the state, seconds since the epoch.
        resident_bytes: Memory measured for the version, None while unknown.
        note: What an operator should know although nothing failed: "unbatched:
            rows influence each other", "placed in process: 0.31 ms".
        is_late: Whether what brings the next state has taken so long that nobody should
            wait for it; it may come all the same.
        is_changing: Whether other contents of the version are on their way to take the
            place of these.
        is_faulty: Whether it is available, but was seen to fail: it is quarantined, or
            fails on its own example.

    """

    id: ServableId
    manager_state: ManagerState
    error: ServingError | None = None
    reason: str = ""
    since_s: float = 0.0
    resident_bytes: int | None = None
    note: str = ""
    is_late: bool = False
    is_changing: bool = False
    is_faulty: bool = False

    def __str__(self) -> str:
        health = "OK" if self.error is None else str(self.error)
        return (
            f"id: {self.id} manager_state: {self.manager_state.name.capitalize()} "
            f"health: {health}"
        )
