"""How the number of replicas follows load."""

from __future__ import annotations

import math

import pytest

from tfs.core.errors import InvalidArgument
from tfs.hosted.load_following import LoadFollowing, LoadOptions


def test_growth_is_taken_at_once_and_shrinking_by_and_by() -> None:
    """Callers wait for the first; a quiet minute is no reason for the second."""
    following = LoadFollowing(LoadOptions(per_replica=4, window_s=100))
    assert following.wanted(0, 3.9, 1) == 1
    assert following.wanted(10, 9.0, 1) == 3
    assert following.wanted(20, 0.0, 3) == 3
    assert following.wanted(109, 0.0, 3) == 3
    assert following.wanted(111, 0.0, 3) == 2
    assert following.wanted(120, 0.0, 2) == 2
    assert following.wanted(212, 0.0, 2) == 1
    assert following.wanted(400, 0.0, 1) == 1


def test_what_was_needed_within_the_window_stays() -> None:
    """One peak a window keeps its replicas."""
    following = LoadFollowing(LoadOptions(per_replica=4, window_s=100))
    for start_s in range(0, 1000, 90):
        assert following.wanted(start_s, 8.0, 2) == 2
        assert following.wanted(start_s + 45, 0.0, 2) == 2


@pytest.mark.parametrize("field", ["per_replica", "window_s"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_a_bad_option_is_refused_on_creation(field: str, value: float) -> None:
    """A replica that should have no requests would want infinitely many others."""
    with pytest.raises(InvalidArgument, match=f"{field} must be positive"):
        LoadOptions(**{field: value})
