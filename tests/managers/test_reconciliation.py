"""managers.steps.reconciliation."""

from __future__ import annotations

from managers.steps.inbox import Aspired, Reconciliation, reconcile
from managers.versions.harness_state import HarnessState
from managers.versions.version import LoaderData, RetryOptions, Version
from tfs.core.errors import Internal, InvalidArgument
from tfs.core.servable_id import ServableId
from tfs.core.source import AspiredVersions, ServableData
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_loader import FakeLoader

CLOCK = FakeClock()
LOADERS = {version: FakeLoader(ServableId("m", version)) for version in range(1, 6)}


def managed(version: int, *, is_aspired: bool = True, is_ready: bool = True) -> Version:
    """Returns a harness of a version's usual loader."""
    harness = Version(
        ServableData(ServableId("m", version), LOADERS[version]),
        retry=RetryOptions(),
        clock=CLOCK,
        is_aspired=is_aspired,
    )
    if is_ready:
        harness.request_load()
        for state in (
            HarnessState.LOAD_APPROVED,
            HarnessState.LOADING,
            HarnessState.READY,
        ):
            harness.transition(state)
    return harness


def aspired(*items: int | FakeLoader, reason: str = "") -> Aspired:
    """Returns a word of a source; numbers come with their usual loader."""
    made = (LOADERS[item] if isinstance(item, int) else item for item in items)
    return AspiredVersions(
        "m", tuple(ServableData(loader.id, loader) for loader in made), reason
    )


def told(result: Reconciliation) -> dict[str, list[int]]:
    """Returns the versions in each part of what is to be done."""
    return {
        "again": [h.id.version for h in result.wanted_again],
        "gone": [h.id.version for h, _ in result.unaspired],
        "given up": [h.id.version for h in result.given_up],
        "new": [data.id.version for data in result.new],
    }


def test_who_repeats_himself_changes_nothing() -> None:
    """Sources call after every look, also when nothing is new."""
    result = reconcile(aspired(1, 2), [managed(1), managed(2, is_ready=False)])
    assert result == Reconciliation()


def test_omission_means_that_it_goes_and_what_is_new_is_managed() -> None:
    """The reason is the source's."""
    result = reconcile(aspired(2, 3, reason="policy"), [managed(1), managed(2)])
    assert told(result) == {"again": [], "gone": [1], "given up": [], "new": [3]}
    assert result.unaspired[0][1] == "policy"
    assert reconcile(aspired(), [managed(1)]).unaspired[0][1] == "no longer aspired"


def test_another_loader_replaces_the_one_that_there_is() -> None:
    """The harness stays until its policy says that it goes."""
    result = reconcile(aspired(FakeLoader(ServableId("m", 1))), [managed(1)])
    assert told(result) == {"again": [], "gone": [1], "given up": [], "new": [1]}
    assert result.unaspired[0][1].startswith("replaced by its new contents")


def test_what_comes_back_before_it_was_unloaded_serves_on() -> None:
    """It need not be loaded; what unloads already does have to be."""
    on_its_way_out = managed(2, is_aspired=False)
    on_its_way_out.request_unload()
    result = reconcile(aspired(1, 2), [managed(1, is_aspired=False), on_its_way_out])
    assert told(result) == {"again": [1], "gone": [], "given up": [2], "new": [2]}


def test_a_stand_in_gives_way_to_what_is_new_alone() -> None:
    """While nothing new comes it is all that serves."""
    stand_in = managed(1, is_aspired=False)
    assert told(reconcile(aspired(2), [stand_in, managed(2)]))["given up"] == []
    assert told(reconcile(aspired(3), [stand_in, managed(2)])) == {
        "again": [],
        "gone": [2],
        "given up": [1],
        "new": [3],
    }
    assert told(reconcile(aspired(), [stand_in]))["given up"] == [1]


def test_the_last_of_two_with_one_number_counts() -> None:
    """Two directories may mean the same version: 1 and 001."""
    other = FakeLoader(ServableId("m", 1))
    result = reconcile(aspired(1, other), [])
    assert [data.payload for data in result.new] == [other]


def test_an_error_is_new_only_if_it_says_something_new() -> None:
    """Errors are compared by code and message."""
    error = InvalidArgument("no manifest")
    harness = Version(
        ServableData(ServableId("m", 1), None, error),
        retry=RetryOptions(),
        clock=CLOCK,
    )
    same, other = InvalidArgument("no manifest"), Internal("no manifest")
    for found, new in ((same, []), (other, [1])):
        item: LoaderData = ServableData(ServableId("m", 1), None, found)
        word = AspiredVersions("m", (item,), "")
        assert told(reconcile(word, [harness]))["new"] == new


def test_what_its_equal_replaces_does_not_come_back() -> None:
    """A source that repeats itself during a retry leaves one copy of a version, not two."""
    old, new = managed(1, is_aspired=False), managed(1, is_ready=False)
    assert told(reconcile(aspired(1), [old, new])) == told(Reconciliation())


def test_new_contents_go_when_the_old_ones_come_back() -> None:
    """A file that changes and changes back leaves what was made of it first."""
    old = managed(1, is_aspired=False)
    other = FakeLoader(ServableId("m", 1))
    changed = Version(ServableData(other.id, other), retry=RetryOptions(), clock=CLOCK)
    result = reconcile(aspired(1), [old, changed])
    assert result.wanted_again == [old]
    assert [harness for harness, _ in result.unaspired] == [changed]
