"""What was unloaded for versions that failed comes back, though others serve."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from managers.harness_snapshot import HarnessSnapshot
from managers.harness_state import END_STATES, HarnessState
from managers.version_policy.action import ActionKind
from managers.version_policy.resource_preserving import resource_preserving
from managers.version_policy.standing_in import standing_in
from tests.managers.version_policy.tables import answer, snapshots, versions

CASES = {
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
    ("state", "heirs", "expected"), CASES.values(), ids=CASES.keys()
)
def test_a_version_stands_in_for_its_heirs_that_failed(
    state: str, heirs: dict[int, list[int]], expected: str
) -> None:
    """It takes the place of one that failed, and gives it back to one that may not."""
    policy = standing_in(resource_preserving, lambda: heirs)
    assert answer(policy(versions(state))) == expected


HEIRS = st.dictionaries(st.integers(1, 6), st.sets(st.integers(1, 6), max_size=2))


@given(snapshots, HEIRS)
def test_no_more_is_loaded_than_is_aspired(
    listed: list[HarnessSnapshot], heirs: dict[int, set[int]]
) -> None:
    """What comes back has the place of a version that failed, and of it alone."""
    for action in standing_in(resource_preserving, lambda: heirs)(listed):
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


@given(snapshots)
def test_without_heirs_the_policy_decides(listed: list[HarnessSnapshot]) -> None:
    """Where every version is its own name's only one, there is nothing to add."""
    numbers = [v.id.version for v in listed]
    if len(set(numbers)) == len(numbers):
        policy = standing_in(resource_preserving, dict)
        assert policy(listed) == resource_preserving(listed)
