"""tfs.handlers.limits.in_flight_limit."""

from __future__ import annotations

import pytest

from tfs.handlers.limits.in_flight_limit import InFlightLimit


def test_as_many_are_taken_as_there_are() -> None:
    """One more is refused, and what is given back can be taken again."""
    places = InFlightLimit(2)
    places.take()
    places.take()
    with pytest.raises(IndexError):
        places.take()
    assert places.num_taken == 2
    places.give_back()
    assert places.num_taken == 1
    places.take()


def test_several_are_taken_together_or_not_at_all() -> None:
    """A burst that does not fit takes nothing from those who do."""
    places = InFlightLimit(3)
    places.take()
    assert not places.take_all(3)
    assert places.num_taken == 1
    assert places.take_all(2)
    assert places.num_taken == 3
    places.give_all_back(3)
    assert places.num_taken == 0


def test_without_a_limit_there_is_always_one() -> None:
    """Zero means that nothing is counted."""
    places = InFlightLimit(0)
    places.take()
    assert places.take_all(1_000_000)
    places.give_back()
    places.give_all_back(5)
    assert places.num_taken == 0
