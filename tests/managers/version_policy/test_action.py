"""What policies share."""

from __future__ import annotations

from managers.version_policy.action import highest_aspired_new
from tests.managers.version_policy.tables import versions


def test_nothing_new_is_aspired() -> None:
    """Neither loaded nor un-aspired versions count (NoHighestAspiredNewServableId)."""
    assert highest_aspired_new(versions("1 READY t, 2 NEW f, 3 ERROR t")) is None
    assert highest_aspired_new([]) is None


def test_highest_of_the_new_ones_is_found() -> None:
    """The maximum among aspired and NEW (HighestAspiredNewServableId)."""
    found = highest_aspired_new(versions("5 NEW f, 2 NEW t, 4 NEW t, 9 READY t"))
    assert found is not None
    assert found.id.version == 4
