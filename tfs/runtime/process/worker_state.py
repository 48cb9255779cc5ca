"""The life of a worker, as a table."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final


class WorkerState(enum.Enum):
    """The states of a worker."""

    ABSENT = "absent"
    """Nobody wants one."""
    FORKING = "forking"
    """Asked of the zygote."""
    MAPPING = "mapping"
    """Alive, loading its version."""
    READY = "ready"
    """Answers calls."""
    DEAD = "dead"
    """Gone; the next one is due now or after a pause."""
    CLOSED = "closed"
    """It has ended for good."""


TRANSITIONS: Final[Mapping[WorkerState, frozenset[WorkerState]]] = {
    WorkerState.ABSENT: frozenset({WorkerState.FORKING, WorkerState.CLOSED}),
    WorkerState.FORKING: frozenset(
        {WorkerState.MAPPING, WorkerState.DEAD, WorkerState.CLOSED}
    ),
    WorkerState.MAPPING: frozenset(
        {WorkerState.READY, WorkerState.DEAD, WorkerState.ABSENT, WorkerState.CLOSED}
    ),
    WorkerState.READY: frozenset({WorkerState.DEAD, WorkerState.CLOSED}),
    WorkerState.DEAD: frozenset(
        {WorkerState.FORKING, WorkerState.ABSENT, WorkerState.CLOSED}
    ),
    WorkerState.CLOSED: frozenset(),
}


def transition(who: str, state: WorkerState, to: WorkerState) -> WorkerState:
    """Returns ``to`` if the table allows the move.

    Raises:
        AssertionError: It does not. That is a fault of ours; nothing changed.

    """
    if to not in TRANSITIONS[state]:
        raise AssertionError(f"{who}: no way from {state.value} to {to.value}")
    return to
