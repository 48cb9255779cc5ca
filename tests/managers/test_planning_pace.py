"""Servables of many versions are decided on less often, and never forgotten."""

from __future__ import annotations

from managers.steps.planning_pace import PlanningPace


def test_few_versions_never_rest() -> None:
    """What happens to an ordinary servable is acted upon at once."""
    pace = PlanningPace()
    for _ in range(3):
        assert pace.take_due(["a"], [], 0.0) == ["a"]
        pace.note("a", 64, 0.0)
    assert not pace.is_resting("a")
    assert pace.next_s() is None


def test_many_versions_rest_for_a_time_that_grows_with_their_number() -> None:
    """A change while it rests is decided on when it has rested, without another one."""
    pace = PlanningPace()
    pace.note("a", 2000, 1.0)
    assert pace.is_resting("a")
    assert pace.next_s() is None  # nothing waits
    assert pace.take_due(["a", "b"], [], 1.0) == ["b"]
    rested_s = pace.next_s()
    assert rested_s is not None
    assert 1.02 < rested_s < 1.2
    assert pace.take_due([], [], rested_s) == ["a"]
    assert pace.take_due([], [], rested_s) == []
    assert pace.next_s() is None


def test_what_is_urgent_does_not_rest() -> None:
    """Another wish is taken in at once, and what waited with it."""
    pace = PlanningPace()
    pace.note("a", 2000, 1.0)
    assert pace.take_due(["a"], [], 1.0) == []
    assert pace.take_due([], ["a"], 1.0) == ["a"]
    assert pace.next_s() is None
    assert pace.take_due([], [], 9.0) == []
