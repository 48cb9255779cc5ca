"""Where a loader stands: the state machine that a harness walks through, and its snapshot.

``TRANSITIONS`` is the whole machine; docs/lifecycle.md prints it.

(TensorFlow Serving: core/loader_harness.h.)
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tfs.core.errors import ServingError
from tfs.core.servable_id import ServableId


class HarnessState(enum.Enum):
    """The state of a loader. Finer than, and not to be confused with, ManagerState."""

    NEW = "new"
    LOAD_REQUESTED = "load-requested"
    LOAD_APPROVED = "load-approved"
    LOADING = "loading"
    READY = "ready"
    UNLOAD_REQUESTED = "unload-requested"
    QUIESCING = "quiescing"
    QUIESCED = "quiesced"
    UNLOADING = "unloading"
    DISABLED = "disabled"
    ERROR = "error"


_S = HarnessState

TRANSITIONS: Final[Mapping[HarnessState, frozenset[HarnessState]]] = {
    _S.NEW: frozenset({_S.LOAD_REQUESTED, _S.ERROR}),
    _S.LOAD_REQUESTED: frozenset({_S.LOAD_APPROVED, _S.ERROR}),
    _S.LOAD_APPROVED: frozenset({_S.LOADING, _S.ERROR}),
    _S.LOADING: frozenset({_S.READY, _S.ERROR}),
    _S.READY: frozenset({_S.UNLOAD_REQUESTED, _S.ERROR}),
    _S.UNLOAD_REQUESTED: frozenset({_S.QUIESCING, _S.ERROR}),
    _S.QUIESCING: frozenset({_S.QUIESCED, _S.ERROR}),
    _S.QUIESCED: frozenset({_S.UNLOADING, _S.ERROR}),
    _S.UNLOADING: frozenset({_S.DISABLED, _S.ERROR}),
    _S.DISABLED: frozenset(),
    _S.ERROR: frozenset(),
}
"""From each state, the states it may go to."""

COMING_STATES: Final = frozenset({_S.LOAD_REQUESTED, _S.LOAD_APPROVED, _S.LOADING})
"""States of a load that was asked for and has not ended."""

END_STATES: Final = frozenset({_S.DISABLED, _S.ERROR})
"""States that are never left; nothing is loaded in them."""


@dataclass(frozen=True, slots=True)
class HarnessSnapshot:
    """A harness at one moment. Immutable.

    Attributes:
        id: The version.
        state: Where its loader stands.
        error: Why it is in ERROR; None otherwise.
        is_aspired: Whether the source wants it.
        generation: Which of the version's harnesses it is, counted up.
        may_return: Whether it was unloaded for others and can be loaded again.
        is_late: Whether its loader takes so long that others have stopped waiting for
            it.
        is_pausing: Whether an attempt to load it failed and another one will follow.
        heirs: The versions that are to take its place for callers, who mean it by a label
            or as the primary.
        is_needed: Whether callers need it whatever takes its place, for now: what they
            are to get instead is not managed yet.

    """

    id: ServableId
    state: HarnessState
    error: ServingError | None
    is_aspired: bool
    generation: int
    may_return: bool = False
    is_late: bool = False
    is_pausing: bool = False
    heirs: frozenset[int] = frozenset()
    is_needed: bool = False
