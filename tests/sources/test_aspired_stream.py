"""What a source says after a listing, case by case."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sources.aspired_stream import Versions, decide
from sources.listing import Listing
from sources.servable_to_monitor import ServableToMonitor, StoragePath
from sources.version_policy import Specific
from tests.present import present
from tfs.core.servable_id import ServableId
from tfs.core.source import ServableData

SERVABLE = ServableToMonitor("m", "/m")


def versions(*numbers: int, fingerprint: str = "f") -> Versions:
    return tuple(
        ServableData(ServableId("m", n), StoragePath(f"/m/{n}", fingerprint))
        for n in numbers
    )


def found(*numbers: int, at_hand: tuple[int, ...] | None = None) -> Listing:
    return Listing(
        SERVABLE, 0.0, versions(*numbers), numbers if at_hand is None else at_hand
    )


@pytest.mark.parametrize(
    ("known", "what"),
    [
        ((1, 2), "1 gone"),
        ((1,), "1 gone, 2 appeared"),
        (None, "1 gone"),
    ],
)
def test_what_came_is_told_beside_what_went(
    known: tuple[int, ...] | None, what: str
) -> None:
    """A version that takes another's place is new, or was there all the time."""
    decision = decide(SERVABLE, versions(1), found(2), known=known)
    assert present(decision.aspired).reason == f"latest(1) of /m: {what}"


@pytest.mark.parametrize(
    ("before", "scan", "is_new", "what"),
    [
        (None, found(), False, "no version"),
        (None, found(2, 1), False, "found 2, 1"),
        (versions(), found(1), False, "1 appeared"),
        (versions(1), found(2, at_hand=(1, 2)), False, "2 appeared"),
        (versions(2), found(1), False, "2 gone"),
        (versions(1, 2), found(2), False, "1 gone"),
        (versions(2), found(1, at_hand=(1, 2)), True, "configuration changed"),
        (versions(2), found(1), True, "configuration changed, 2 gone"),
        (versions(2), found(1, at_hand=(1, 2)), False, "1 appeared"),
        (versions(1, 2), found(1, at_hand=(1, 2)), False, "different versions ready"),
        (
            versions(1, fingerprint="old"),
            Listing(SERVABLE, 0.0, versions(1), (1,), overwritten=(1,)),
            False,
            "1 overwritten in place",
        ),
        (versions(1, 2, fingerprint="old"), found(1, 2), False, "1, 2 replaced"),
    ],
)
def test_a_new_set_is_told_with_what_changed(
    before: Versions | None, scan: Listing, is_new: bool, what: str
) -> None:
    """Whoever reads a log learns why a version came or went."""
    decision = decide(SERVABLE, before, scan, is_new=is_new)
    assert decision.aspired is not None
    assert decision.aspired.versions == scan.versions
    assert decision.aspired.reason == f"latest(1) of /m: {what}"
    assert decision.problems == ()


def test_what_is_pinned_is_part_of_why() -> None:
    """A version that only a rollback, a canary or a label wants says so."""
    servable = ServableToMonitor(
        "m", "/m", pinned=frozenset({3}), labelled=frozenset({1})
    )
    decision = decide(servable, versions(3), found(3, 1), is_new=True)
    assert decision.aspired is not None
    expected = "latest(1) and pinned 1, 3 of /m: configuration changed"
    assert decision.aspired.reason == expected


def test_the_same_set_is_told_only_to_repeat_it() -> None:
    """Nothing new is nothing to say, until it is time to say it again."""
    assert decide(SERVABLE, versions(1), found(1)).aspired is None
    repeated = present(decide(SERVABLE, versions(1), found(1), repeat=True).aspired)
    assert repeated.reason == "latest(1) of /m: unchanged"


def test_the_last_version_goes_only_on_request() -> None:
    """Nothing found is not believed, unless asked for, or wished for by an empty list."""
    kept = decide(SERVABLE, versions(1, 2), found())
    assert kept.aspired is None
    # Not which: the last one told may have failed, and one before it serve.
    assert "what is loaded stays" in kept.problems[0]
    asked = decide(SERVABLE, versions(1), found(), unload_when_empty=True)
    assert present(asked.aspired).versions == ()
    wish = ServableToMonitor("m", "/m", Specific())
    assert decide(wish, versions(1), found(at_hand=(1,))).aspired is not None
    pinned = ServableToMonitor("m", "/m", Specific(), frozenset({1}))
    assert decide(pinned, versions(1), found()).aspired is None


PINNING = replace(SERVABLE, pinned=frozenset({1}))


def test_a_pinned_version_stays_though_its_directory_is_gone() -> None:
    """A rollback holds until it is ended, whoever clears old versions away."""
    decision = decide(PINNING, versions(1, 3), found(3))
    assert decision.aspired is None or decision.aspired.versions == versions(3, 1)
    assert decision.problems == (
        "version 1 of m is not to be had from /m; what is loaded of it stays, because "
        "it is pinned",
    )
    settled = decide(PINNING, versions(3, 1), found(3))
    assert settled.aspired is None
    assert settled.problems == decision.problems


def test_a_pinned_version_stays_though_the_base_path_moves() -> None:
    """Nothing could answer in its place; where it is there too it is loaded from there."""
    moved = replace(PINNING, base_path="/n")
    decision = decide(moved, versions(1, 3), found(3), is_new=True)
    assert decision.aspired is None or decision.aspired.versions == versions(3, 1)
    assert "is not to be had from /n" in decision.problems[0]
    settling = decide(moved, versions(1, 3), found(3, at_hand=(1, 3)), is_new=True)
    assert settling.problems == decision.problems
    assert decide(moved, versions(1, 3), found(3, 1), is_new=True).problems == ()


def test_an_empty_listing_takes_nothing_though_something_is_pinned() -> None:
    """What is not pinned stays as well, as after a lost mount."""
    assert decide(PINNING, versions(1, 3), found()).aspired is None


@pytest.mark.parametrize(
    ("servable", "before", "scan", "unload_when_empty"),
    [
        (SERVABLE, versions(1, 3), found(3), False),  # pinned no more
        (PINNING, versions(3), found(3), False),  # it never was told
        (PINNING, versions(1, 3), found(), True),
    ],
)
def test_a_version_goes_with_its_directory_unless_it_is_pinned_there(
    servable: ServableToMonitor,
    before: Versions,
    scan: Listing,
    unload_when_empty: bool,
) -> None:
    """What somebody never had or does not pin any more is as it was found."""
    decision = decide(servable, before, scan, unload_when_empty=unload_when_empty)
    told = scan.versions if decision.aspired is None else decision.aspired.versions
    assert told == scan.versions
    assert decision.problems == ()
