"""The version policies as tables, and as laws."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sources.version_policy import (
    All,
    Latest,
    Specific,
    VersionPolicy,
    choose,
    list_versions,
    name_versions,
    parse_version,
)

TABLE: list[tuple[str, VersionPolicy, list[int], list[int], list[int]]] = [
    # case, policy, at hand, pinned, chosen
    ("nothing at hand", Latest(), [], [], []),
    ("latest is the default one", Latest(), [1, 3, 2], [], [3]),
    ("latest counts down", Latest(2), [1, 3, 2], [], [3, 2]),
    ("latest 0 is latest 1", Latest(0), [1, 2], [], [2]),
    ("latest takes what there is", Latest(9), [1, 2], [], [2, 1]),
    (
        "latest does not count a canary",
        Latest(1, frozenset({3})),
        [1, 2, 3],
        [3],
        [3, 2],
    ),
    (
        "a canary to come loads nothing older",
        Latest(1, frozenset({3})),
        [1, 2],
        [3],
        [2],
    ),
    ("all counts up", All(), [10, 2, 1], [], [1, 2, 10]),
    ("specific keeps its order", Specific((3, 1)), [1, 2, 3], [], [3, 1]),
    ("specific takes what exists", Specific((3, 9)), [1, 2, 3], [], [3]),
    ("specific takes each once", Specific((3, 3)), [3], [], [3]),
    ("specific of nothing is nothing", Specific(), [1, 2], [], []),
    ("pinned joins latest, highest first", Latest(), [1, 2, 3], [1], [3, 1]),
    ("pinned joins specific, last", Specific((1,)), [1, 2, 3], [3, 2], [1, 2, 3]),
    ("pinned twice is once", Latest(), [1, 2], [2], [2]),
    ("pinned and absent is absent", Latest(), [1, 2], [7], [2]),
    ("pinned under all changes nothing", All(), [1, 2], [1], [1, 2]),
]


@pytest.mark.parametrize(
    ("case", "policy", "at_hand", "pinned", "chosen"), TABLE, ids=[c[0] for c in TABLE]
)
def test_a_policy_chooses(
    case: str,
    policy: VersionPolicy,
    at_hand: list[int],
    pinned: list[int],
    chosen: list[int],
) -> None:
    """The policies follow the table.

    file_system_storage_path_source_test: NLatestVersions, SpecificVersions,
    SpecificVersionsEmpty, DefaultVersionPolicy, DefaultNumLatestVersions,
    MultipleVersionsAtTheSameTime.
    """
    assert list(choose(policy, at_hand, pinned=pinned).versions) == chosen


def test_a_named_version_that_is_absent_or_not_ready_is_missing() -> None:
    """Only versions somebody asked for by number are reported as missing."""
    chosen = choose(Specific((1, 2, 9)), [1, 2], lambda v: v != 2, pinned=[8])
    assert (chosen.versions, chosen.missing) == ((1,), (2, 9, 8))
    assert choose(Latest(2), [1, 2], lambda v: v != 2).missing == ()


def test_latest_skips_what_is_not_ready() -> None:
    """A half-written newest version does not take the place of the one before it."""
    assert choose(Latest(), [1, 2, 3], lambda v: v != 3).versions == (2,)


def test_latest_looks_at_no_more_versions_than_it_needs() -> None:
    """A base path with a thousand old versions costs one look."""
    asked: list[int] = []

    def is_ready(version: int) -> bool:
        asked.append(version)
        return True

    choose(Latest(), range(1000), is_ready, pinned=[999])
    assert asked == [999]


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("1", 1),
        ("0", 0),
        ("00000123", 123),
        ("20160102030405", 20160102030405),
        (" 7", 7),
        ("+7", 7),
        (str((1 << 63) - 1), (1 << 63) - 1),
        (str(1 << 63), None),
        ("-1", None),
        ("", None),
        ("1.tmp", None),
        ("2.denied", None),
        ("v2", None),
        ("tmp", None),
        (".tmp-3-ab12", None),
        ("1_0", None),
        ("0x10", None),
        ("1e3", None),
        ("٣", None),
    ],
)
def test_a_name_is_a_version_if_it_is_a_plain_number(
    name: str, version: int | None
) -> None:
    """Names parse as TensorFlow Serving parses them, negative numbers apart.

    file_system_storage_path_source_test: ParseTimestampedVersion,
    SpecificVersionsLeadingZeros.
    """
    assert parse_version(name) == version


def test_of_names_for_one_version_the_plainest_wins() -> None:
    """Duplicates give one version, under the last name in sorted order.

    file_system_storage_path_source_test: DuplicateVersions.
    """
    names = ["0001", "001", "00001", "non_numerical_child", "2"]
    assert name_versions(names) == {1: "001", 2: "2"}
    assert name_versions(reversed(names)) == {1: "001", 2: "2"}
    assert name_versions([*names, "1"])[1] == "1"


@pytest.mark.parametrize("bad", [-1, 1 << 63])
def test_an_impossible_number_is_refused(bad: int) -> None:
    """Options are validated when they are made."""
    with pytest.raises(ValueError, match=str(bad)):
        Specific((bad,))
    if bad < 0:
        with pytest.raises(ValueError, match="-1"):
            Latest(bad)


POLICIES = st.one_of(
    st.builds(Latest, st.integers(0, 4)),
    st.just(All()),
    st.builds(Specific, st.lists(st.integers(0, 9), max_size=4).map(tuple)),
)


@given(
    POLICIES,
    st.lists(st.integers(0, 9)),
    st.sets(st.integers(0, 9)),
    st.sets(st.integers(0, 9), max_size=2),
)
def test_whatever_is_chosen_is_at_hand_ready_and_chosen_once(
    policy: VersionPolicy, at_hand: list[int], ready: set[int], pinned: set[int]
) -> None:
    """No policy aspires a version that is absent, not ready, or aspired already."""
    chosen = choose(policy, at_hand, ready.__contains__, pinned)
    usable = set(at_hand) & ready
    assert set(chosen.versions) <= usable
    assert len(set(chosen.versions)) == len(chosen.versions)
    assert pinned & usable <= set(chosen.versions)
    assert not set(chosen.missing) & set(chosen.versions)
    if isinstance(policy, Latest) and usable:
        assert chosen.versions[0] == max(usable)


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ([], ""),
        ([3, 1], "3, 1"),
        (range(1, 11), "1, 2, 3, 4, 5, 6, 7, 8, 9, 10"),
        (range(1, 10_001), "1, 2, 3, 4, 5, (9990 more), 9996, 9997, 9998, 9999, 10000"),
    ],
)
def test_very_many_versions_are_told_by_the_outermost(
    versions: Sequence[int], expected: str
) -> None:
    """A reason goes with every version, so its length must not be their number."""
    assert list_versions(versions) == expected
