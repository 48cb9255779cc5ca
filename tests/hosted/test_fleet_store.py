"""The wanted state in its file: whole changes, one after the other."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.threads import run_together
from tfs.core.errors import DataLoss, FailedPrecondition
from tfs.hosted.fleet import Fleet, HostedModel, Job
from tfs.hosted.fleet_store import FleetStore
from tfs.testing.fake_clock import FakeClock

FLEET = Fleet(
    {"a": Job("a", 5, "gpu", is_down=True)},
    {"m": HostedModel("m", 'name: "m"', 3, False, 1, 4, "gpu", 2)},
    {"m": ("a",)},
)


@pytest.fixture
def store(tmp_path: Path) -> FleetStore:
    return FleetStore(str(tmp_path / "fleet.db"), FakeClock(wall_s=70.0))


def test_what_was_written_is_read(store: FleetStore) -> None:
    """Every field survives, with what made the change and when."""
    assert store.read().number == 0
    store.change("first", lambda _: FLEET)
    found = FleetStore(store.path).read()
    assert (found.number, found.fleet, found.why, found.at_s) == (1, FLEET, "first", 70)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """SQLite says of it that it is unable to open a file, whatever hinders it."""
    store = FleetStore(str(tmp_path / "fleets" / "fleet.db"))
    with pytest.raises(FailedPrecondition) as caught:
        store.read()
    assert caught.value.message == (
        f"the fleet's store {store.path}: there is no folder {tmp_path}/fleets; make it "
        "first"
    )


def test_an_edit_that_raises_or_changes_nothing_is_no_revision(
    store: FleetStore,
) -> None:
    """A refused command leaves the state as it was."""
    store.change("first", lambda _: FLEET)

    def refuse(_: Fleet) -> Fleet:
        raise FailedPrecondition("no")

    with pytest.raises(FailedPrecondition):
        store.change("refused", refuse)
    assert store.change("same", lambda fleet: fleet).number == 1
    assert [each.why for each in store.history(9)] == ["first"]


def test_changes_at_once_are_all_there(store: FleetStore) -> None:
    """Each edit sees what the one before it left."""

    def add(index: int) -> None:
        name = f"j{index}"
        store.change(
            name, lambda old: replace(old, jobs={**old.jobs, name: Job(name, 1)})
        )

    run_together(*(partial(add, index) for index in range(8)))
    assert len(store.read().fleet.jobs) == 8
    assert [each.number for each in store.history(3)] == [8, 7, 6]


def test_what_is_no_store_is_told(tmp_path: Path) -> None:
    """A wrong path, another file and another format are named, not overwritten."""
    with pytest.raises(FailedPrecondition, match="absent"):
        FleetStore(str(tmp_path / "absent" / "fleet.db")).read()
    other = tmp_path / "other"
    other.write_text("no database " * 100)
    with pytest.raises(FailedPrecondition, match="other"):
        FleetStore(str(other)).read()
    for text in ("[]", "{", '{"format": 2}', '{"format": 1, "jobs": [{"x": 1}]}'):
        with pytest.raises(DataLoss):
            Fleet.from_json(text)
