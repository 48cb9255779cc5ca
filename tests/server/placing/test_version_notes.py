"""tfs.server.placing.version_notes."""

from __future__ import annotations

from typing import cast

import pytest

from managers.aspired_versions_manager import AspiredVersionsManager
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.server.placing.version_notes import VersionNotes
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_loop import FakeLoop

ID = ServableId("m", 1)


class Noted:
    """Notes, and what was published of them last."""

    def __init__(self) -> None:
        self._loop = FakeLoop(FakeClock())
        self._published: list[tuple[str | None, int | None]] = []
        self.notes = VersionNotes(cast(AspiredVersionsManager, self), self._loop)

    def annotate(
        self,
        servable_id: ServableId,
        *,
        note: str | None = None,
        resident_bytes: int | None = None,
        is_loading: bool = False,
    ) -> None:
        assert servable_id == ID
        self._published.append((note, resident_bytes))

    def hear(self, state: ManagerState, note: str = "") -> None:
        """Tells of a state that was published."""
        self.notes.follow(ServableState(ID, state, note=note))

    @property
    def last(self) -> tuple[str | None, int | None]:
        """What was published last."""
        self._loop.run_posted()
        return self._published[-1]


@pytest.fixture
def noted() -> Noted:
    return Noted()


def test_a_note_of_a_load_holds_from_when_it_serves(noted: Noted) -> None:
    """Until then, and if the load fails, a hang is one of what served before."""
    noted.notes.place(ID, "runs in process: x", 7, True)
    noted.hear(ManagerState.AVAILABLE, "runs in process: x")
    noted.notes.place(ID, "runs inline: y", 8, True)
    noted.hear(ManagerState.AVAILABLE, "runs in process: x")
    noted.notes.hang(ID, "hangs")
    assert noted.last == ("runs in process: x; hangs", 7)
    noted.hear(ManagerState.AVAILABLE, "runs inline: y")
    noted.notes.replace(ID, "left")
    assert noted.last == ("left", 8)


def test_a_note_ends_with_its_version(noted: Noted) -> None:
    """The same number, loaded anew, is another version."""
    noted.notes.place(ID, "runs in process: x", 7, False)
    noted.hear(ManagerState.END)
    noted.notes.hang(ID, "hangs")
    assert noted.last == ("hangs", None)


def test_a_hang_is_noted_while_it_lasts(noted: Noted) -> None:
    """However often it is told of, the version's earlier note comes back."""
    noted.notes.place(ID, "runs in dlmopen: x", 7, False)
    noted.notes.hang(ID, "a call hangs")
    assert noted.last == ("runs in dlmopen: x; a call hangs", 7)
    noted.notes.hang(ID, "another hangs")
    noted.notes.hang(ID, "")
    assert noted.last == ("runs in dlmopen: x", 7)


def test_nothing_is_published_while_the_bus_delivers(noted: Noted) -> None:
    """Notes of versions that serve come from the loop; those of loads come at once."""
    noted.notes.place(ID, "runs in front: x", 7, False)
    noted.notes.replace(ID, "left")
    assert noted._published == [("runs in front: x", 7)]
    assert noted.last == ("left", 7)
