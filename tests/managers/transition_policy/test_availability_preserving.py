"""The default policy as a table, and its promise under any sequence of events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from managers.transition_policy import (
    ActionKind,
    TransitionPolicy,
    availability_preserving,
    resource_preserving,
)
from managers.versions.harness_state import HarnessSnapshot, HarnessState
from tests.managers.transition_policy.tables import (
    answer,
    meaning,
    one_by_one,
    snapshots,
    versions,
)

UPSTREAM = {
    "LoadsNewAspired": (
        "1 UNLOADING f, 2 ERROR f, 3 READY t, 4 NEW t, 5 NEW t",
        "LOAD 5",
    ),
    "UnloadsNonAspiredFirst": (
        "1 UNLOADING f, 2 ERROR f, 3 READY f, 4 READY t, 5 NEW t",
        "UNLOAD 3",
    ),
    "UnloadsFirstNonAspiredWhenNoAspired": (
        "1 DISABLED f, 2 READY f, 3 ERROR f",
        "UNLOAD 2",
    ),
    "ReturnsNoActionWhenNone": (
        "1 READY t, 2 ERROR t, 3 LOADING t, 4 UNLOADING f, 5 DISABLED f",
        "none",
    ),
    "DoesNotUnloadWhenOtherNotReady": ("1 READY f, 2 LOADING t", "none"),
    "DoesNotUnloadWhenOtherInError": ("1 READY f, 2 ERROR t", "none"),
    "UnloadIfOtherReadyEvenIfLoading": (
        "1 READY f, 2 LOADING t, 3 READY t",
        "UNLOAD 1",
    ),
    "UnloadIfOtherReadyEvenIfError": ("1 READY f, 2 ERROR t, 3 READY t", "UNLOAD 1"),
    "UnloadIfNoAspiredVersionsReady": (
        "2 READY f, 1 READY f, 3 ERROR t, 4 LOADING t",
        "UNLOAD 1",
    ),
}
OURS = {
    "nothing to do": ("", "none"),
    "first load": ("1 NEW t", "LOAD 1"),
    "one old version is kept while the new one loads": (
        "1 READY f, 2 NEW t",
        "LOAD 2",
    ),
    "a changed version is loaded beside what serves": (
        "1 READY f, 1b NEW t",
        "LOAD 1b",
    ),
    "a changed version waits for its successor though another serves": (
        "1 READY f, 1b LOADING t, 2 READY t",
        "none",
    ),
    "a changed version goes once its successor is ready": (
        "1 READY f, 1b READY t",
        "UNLOAD 1",
    ),
    "a changed version serves on when its successor fails": (
        "1 READY f, 1b ERROR t, 2 READY t",
        "none",
    ),
    "a changed version goes when nothing is aspired": (
        "1 READY f, 1b ERROR f",
        "UNLOAD 1",
    ),
}


@pytest.mark.parametrize("case", UPSTREAM)
def test_policy_answers_as_upstream(case: str) -> None:
    """Every case of availability_preserving_policy_test, by its name."""
    snapshots, expected = UPSTREAM[case]
    assert answer(availability_preserving(versions(snapshots))) == expected


@pytest.mark.parametrize("case", OURS)
def test_policy_answers_beyond_upstream(case: str) -> None:
    """Ours: versions whose files changed, and the empty stream."""
    snapshots, expected = OURS[case]
    assert answer(availability_preserving(versions(snapshots))) == expected


@given(snapshots)
def test_policy_never_takes_the_last_one_serving(
    listed: list[HarnessSnapshot],
) -> None:
    """It unloads only what is not aspired, and only if another is READY or none is."""
    plan = availability_preserving(listed)
    if not plan:
        return
    action = plan[0]
    chosen = next(v for v in listed if v.generation == action.generation)
    assert chosen.id == action.id
    assert action.why
    if action.kind is ActionKind.LOAD:
        assert chosen.is_aspired
        assert chosen.state is HarnessState.NEW
        return
    assert not chosen.is_aspired
    assert chosen.state is HarnessState.READY
    others = [v for v in listed if v is not chosen and v.state is HarnessState.READY]
    assert others or not any(v.is_aspired for v in listed)


POLICIES = pytest.mark.parametrize(
    "policy", [availability_preserving, resource_preserving]
)


@POLICIES
@given(listed=snapshots)
def test_plan_is_what_would_be_answered_one_by_one(
    policy: TransitionPolicy, listed: list[HarnessSnapshot]
) -> None:
    """Everything that may begin now is named at once, in the order it would begin."""
    assert policy(listed) == one_by_one(policy, listed)


@POLICIES
@given(listed=snapshots, data=st.data())
def test_policy_does_not_depend_on_the_order(
    policy: TransitionPolicy, listed: list[HarnessSnapshot], data: st.DataObject
) -> None:
    """Snapshots come in any order."""
    shuffled = data.draw(st.permutations(listed))
    assert policy(listed) == policy(shuffled)


HANDED_OVER = {
    "nothing is awaited": ("1 READY f, 2 NEW t, 3 READY t", {}, "UNLOAD 1"),
    "its heir is to be loaded": ("1 READY f, 2 NEW t, 3 READY t", {1: [2]}, "LOAD 2"),
    "its heir loads": ("1 READY f, 2 LOADING t, 3 READY t", {1: [2]}, "none"),
    "its heir failed": ("1 READY f, 2 ERROR t, 3 READY t", {1: [2]}, "none"),
    "one of its heirs loads": (
        "1 READY f, 2 LOADING t, 3 READY t",
        {1: [3, 2]},
        "none",
    ),
    "its heir serves": ("1 READY f, 2 READY t, 3 READY t", {1: [2]}, "UNLOAD 1"),
    "nobody aspires its heir": ("1 READY f, 3 READY t", {1: [2]}, "UNLOAD 1"),
    "its heir goes": ("1 READY f, 2 UNLOADING f, 3 READY t", {1: [2]}, "UNLOAD 1"),
    "another one has no heir": (
        "1 READY f, 2 LOADING t, 3 READY t, 4 READY f",
        {1: [2]},
        "UNLOAD 4",
    ),
    "it is aspired itself": ("1 READY t, 2 NEW t", {1: [2]}, "LOAD 2"),
    "it has not begun": ("1 NEW f, 2 NEW t", {1: [2]}, "LOAD 2"),
}


@pytest.mark.parametrize(
    ("state", "heirs", "expected"), HANDED_OVER.values(), ids=HANDED_OVER.keys()
)
def test_a_version_stays_while_its_heirs_are_on_their_way(
    state: str, heirs: dict[int, list[int]], expected: str
) -> None:
    """Whatever else serves: callers are told the old one until then."""
    listed = meaning(versions(state), heirs)
    assert answer(availability_preserving(listed)) == expected


def test_a_version_that_callers_need_stays() -> None:
    """The source has not heard of the configuration that pins it."""
    for state, needed, expected in (
        ("1 READY f, 3 READY t", (1,), "none"),
        ("2 READY f, 3 READY t", (1,), "UNLOAD 2"),
        ("1 READY f, 3 READY t", (), "UNLOAD 1"),
    ):
        listed = meaning(versions(state), {}, needed)
        assert answer(availability_preserving(listed)) == expected
