"""A loader harness at one moment: what is decided on."""

from __future__ import annotations

from dataclasses import dataclass

from managers.versions.harness_state import HarnessState
from tfs.core.errors import ServingError
from tfs.core.servable_id import ServableId


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
