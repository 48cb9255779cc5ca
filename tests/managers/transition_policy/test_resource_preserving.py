"""The saving policy as a table, and its promise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from managers.transition_policy import ActionKind, resource_preserving
from managers.versions.harness_state import END_STATES, HarnessSnapshot, HarnessState
from tests.managers.transition_policy.tables import (
    answer,
    meaning,
    snapshots,
    versions,
)

UPSTREAM = {
    "UnloadsFirstNonAspired": (
        "1 UNLOADING f, 2 READY t, 3 READY f, 4 NEW t, 5 READY f",
        "UNLOAD 3",
    ),
    "LoadsFirstAspiredWhenNoneToUnload": (
        "1 READY t, 2 LOADING t, 3 NEW t, 4 DISABLED f, 5 NEW t",
        "LOAD 5",
    ),
    "ReturnsNoActionWhenNone": (
        "1 READY t, 2 ERROR t, 3 LOADING t, 4 UNLOADING f, 5 DISABLED f",
        "none",
    ),
    "DoesNotLoadWhenOthersStillUnloading": ("1 UNLOAD_REQUESTED f, 2 NEW t", "none"),
    "LoadIfUnaspiredIsError": ("1 ERROR f, 2 NEW t", "LOAD 2"),
    "ErrorAndUnloadRequestedPreventLoading": (
        "1 ERROR f, 2 UNLOAD_REQUESTED f, 3 NEW t",
        "none",
    ),
    "ErrorAndDisabledAllowLoading": ("1 ERROR f, 2 DISABLED f, 3 NEW t", "LOAD 3"),
}
OURS = {
    "nothing to do": ("", "none"),
    "the last version does not go for one that failed": (
        "1 READY f, 2 READY f, 3 ERROR t",
        "UNLOAD 1",
    ),
    "it serves on until something can be loaded": ("1 READY f, 2 ERROR t", "none"),
    "and goes for what can": ("1 READY f, 2 ERROR t, 3 NEW t", "UNLOAD 1"),
    "and where nothing is aspired": ("1 READY f", "UNLOAD 1"),
    "an unaspired version that never began holds up loads": (
        "1 NEW f, 2 NEW t",
        "none",
    ),
    "a changed version is unloaded before it is loaded": (
        "1 READY f, 1b NEW t",
        "UNLOAD 1",
    ),
    "a changed version is loaded once the old one is gone": ("1b NEW t", "LOAD 1b"),
    "what was unloaded comes back if the new one fails": (
        "1 DISABLED r, 2 ERROR t",
        "LOAD 1",
    ),
    "not while there is hope": ("1 DISABLED r, 2 ERROR t, 3 LOADING t", "none"),
    "nor before all that can be loaded failed": (
        "1 DISABLED r, 2 ERROR t, 3 NEW t",
        "LOAD 3",
    ),
    "nor beside anything else": (
        "1 DISABLED r, 2 UNLOADING f, 3 ERROR t",
        "none",
    ),
    "nor where nothing is aspired": ("1 DISABLED r", "none"),
    "old contents come back for new ones that fail": (
        "1 DISABLED r, 1b ERROR t",
        "LOAD 1",
    ),
    "what came back goes for what can be loaded": (
        "1 READY f, 2 ERROR f, 3 NEW t",
        "UNLOAD 1",
    ),
}


@pytest.mark.parametrize("case", UPSTREAM)
def test_policy_answers_as_upstream(case: str) -> None:
    """Every case of resource_preserving_policy_test, by its name."""
    listed, expected = UPSTREAM[case]
    assert answer(resource_preserving(versions(listed))) == expected


@pytest.mark.parametrize("case", OURS)
def test_policy_answers_beyond_upstream(case: str) -> None:
    """Ours: versions whose files changed, and the empty stream."""
    listed, expected = OURS[case]
    assert answer(resource_preserving(versions(listed))) == expected


@given(snapshots)
def test_policy_loads_only_when_nothing_unaspired_is_left(
    listed: list[HarnessSnapshot],
) -> None:
    """It never begins a load while anything that is not aspired may be loaded."""
    plan = resource_preserving(listed)
    if not plan:
        return
    action = plan[0]
    chosen = next(v for v in listed if v.generation == action.generation)
    if action.kind is ActionKind.LOAD:
        if chosen.is_aspired:
            assert chosen.state is HarnessState.NEW
        else:
            assert chosen.may_return
            aspired = [v for v in listed if v.is_aspired]
            assert aspired
            assert all(v.state is HarnessState.ERROR for v in aspired)
        assert all(v.is_aspired or v.state in END_STATES for v in listed)
    else:
        assert not chosen.is_aspired
        assert chosen.state is HarnessState.READY


STANDING_IN = {
    "nothing is awaited": ("1 DISABLED r, 2 READY t, 3 ERROR t", {}, "none"),
    "its heir failed": ("1 DISABLED r, 2 READY t, 3 ERROR t", {1: [3]}, "LOAD 1"),
    "its heir loads": ("1 DISABLED r, 2 ERROR t, 3 LOADING t", {1: [3]}, "none"),
    "its heir serves": ("1 DISABLED r, 2 ERROR t, 3 READY t", {1: [3]}, "none"),
    "its heir is tried anew": (
        "1 DISABLED r, 2 READY t, 3 ERROR t, 3b NEW t",
        {1: [3]},
        "LOAD 3b",
    ),
    "one of its heirs serves": (
        "1 DISABLED r, 2 READY t, 3 ERROR t",
        {1: [2, 3]},
        "none",
    ),
    "others are to be loaded first": (
        "1 DISABLED r, 2 NEW t, 3 ERROR t",
        {1: [3]},
        "LOAD 2",
    ),
    "another is on its way out": (
        "1 DISABLED r, 2 READY t, 3 ERROR t, 4 UNLOADING f",
        {1: [3]},
        "none",
    ),
    "it stands in": ("1 READY f, 2 READY t, 3 ERROR t", {1: [3]}, "none"),
    "it stands in while another is loaded": (
        "1 READY f, 2 READY t, 3 ERROR t, 4 NEW t",
        {1: [3]},
        "LOAD 4",
    ),
    "it goes for another heir": (
        "1 READY f, 2 READY t, 3 ERROR t, 4 NEW t",
        {1: [4]},
        "UNLOAD 1",
    ),
    "it goes when nobody means its heir": (
        "1 READY f, 2 READY t, 3 ERROR t",
        {},
        "UNLOAD 1",
    ),
    "two that went for the same one": (
        "1 DISABLED r, 2 READY f, 3 READY t, 4 ERROR t",
        {1: [4], 2: [4]},
        "none",
    ),
    "its own new contents failed": (
        "1 DISABLED r, 1b ERROR t, 2 READY t",
        {},
        "LOAD 1",
    ),
    "its old contents stand in": ("1 READY f, 1b ERROR t, 2 READY t", {}, "none"),
    "its old contents stand in for all": (
        "1 DISABLED r, 2 READY f, 2b ERROR t",
        {},
        "none",
    ),
    "what it stands beside goes": ("1 READY f, 2 READY f, 2b ERROR t", {}, "UNLOAD 1"),
    "one stands in for one of two": (
        "1 DISABLED r, 2 READY f, 2b ERROR t, 3 ERROR t",
        {1: [3]},
        "LOAD 1",
    ),
    "all failed": ("1 DISABLED r, 2 ERROR t", {}, "LOAD 1"),
    "all failed, and callers mean the older one": (
        "1 DISABLED r, 2 DISABLED r, 3 ERROR t",
        {1: [3]},
        "LOAD 1",
    ),
    "nothing is aspired": ("1 READY f", {1: [2]}, "UNLOAD 1"),
}


@pytest.mark.parametrize(
    ("state", "heirs", "expected"), STANDING_IN.values(), ids=STANDING_IN.keys()
)
def test_a_version_stands_in_for_its_heirs_that_failed(
    state: str, heirs: dict[int, list[int]], expected: str
) -> None:
    """It takes the place of one that failed, and gives it back to one that may not."""
    listed = meaning(versions(state), heirs)
    assert answer(resource_preserving(listed)) == expected


HEIRS = st.dictionaries(st.integers(1, 6), st.sets(st.integers(1, 6), max_size=2))


@given(snapshots, HEIRS)
def test_no_more_is_loaded_than_is_aspired(
    listed: list[HarnessSnapshot], heirs: dict[int, set[int]]
) -> None:
    """What comes back has the place of a version that failed, and of it alone."""
    for action in resource_preserving(meaning(listed, heirs)):
        chosen = next(v for v in listed if v.generation == action.generation)
        if action.kind is ActionKind.LOAD and not chosen.is_aspired:
            aspired = {v.id.version for v in listed if v.is_aspired}
            failed = aspired - {
                v.id.version
                for v in listed
                if v.is_aspired and v.state is not HarnessState.ERROR
            }
            loaded = [
                v for v in listed if not v.is_aspired and v.state not in END_STATES
            ]
            assert chosen.may_return
            assert len(loaded) < len(failed)
