"""What policies share."""

from __future__ import annotations

from managers.transition_policy import aspired_new
from tests.managers.transition_policy.tables import versions


def test_nothing_new_is_aspired() -> None:
    """Neither loaded nor un-aspired versions count (NoHighestAspiredNewServableId)."""
    assert aspired_new(versions("1 READY t, 2 NEW f, 3 ERROR t")) == []
    assert aspired_new([]) == []


def test_new_ones_come_highest_first() -> None:
    """The maximum among aspired and NEW is first (HighestAspiredNewServableId)."""
    found = aspired_new(versions("5 NEW f, 2 NEW t, 4 NEW t, 9 READY t"))
    assert [v.id.version for v in found] == [4, 2]
