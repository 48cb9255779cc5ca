"""What is said of versions beside their states: where they run, and what befell them.

A note replaces the one before it, and a hanging call adds to it while it lasts. While
changed files replace what a version serves, the note of the load holds from the moment at
which the new contents serve; until then it would be said of the old ones.
"""

from __future__ import annotations

import threading
from typing import TypeAlias

from managers.aspired_versions_manager import AspiredVersionsManager
from tfs.core.loop.loop_entry import LoopEntry
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState

_Note: TypeAlias = tuple[str, int | None]
"""The text, and the bytes that the version was seen to hold; None if not measured."""

_NONE: _Note = ("", None)


class VersionNotes:
    """The notes of versions. Thread-safe.

    Args:
        manager: Publishes them with the states of versions.
        loop: Notes of versions that serve are published from there, because nothing may
            be published while the bus delivers an event.

    """

    def __init__(self, manager: AspiredVersionsManager, loop: LoopEntry) -> None:
        self._manager = manager
        self._loop = loop
        # Guards the fields below; leaf.
        self._lock = threading.Lock()
        self._notes: dict[ServableId, _Note] = {}
        self._of_loads: dict[ServableId, _Note] = {}
        self._before_hangs: dict[ServableId, _Note] = {}

    def place(
        self,
        servable_id: ServableId,
        text: str,
        resident_bytes: int | None,
        is_loading: bool,
    ) -> None:
        """Notes where a version runs; at once, so that one that loads is published with it."""
        with self._lock:
            notes = self._of_loads if is_loading else self._notes
            notes[servable_id] = text, resident_bytes
        self._manager.annotate(
            servable_id,
            note=text,
            resident_bytes=resident_bytes,
            is_loading=is_loading,
        )

    def replace(self, servable_id: ServableId, text: str) -> None:
        """Replaces the note of a version that serves; what it holds stays as it is."""
        with self._lock:
            _, resident_bytes = self._notes.get(servable_id, _NONE)
            self._notes[servable_id] = text, resident_bytes
        self._publish(servable_id, text, resident_bytes)

    def hang(self, servable_id: ServableId, text: str) -> None:
        """Adds that a call hangs; an empty text takes that back when the call has ended."""
        with self._lock:
            before = self._notes.get(servable_id, _NONE)
            if text:
                self._before_hangs.setdefault(servable_id, before)
                note = f"{before[0]}; {text}" if before[0] else text
            else:
                note = self._before_hangs.pop(servable_id, before)[0]
            self._notes[servable_id] = note, before[1]
        self._publish(servable_id, note, before[1])

    def follow(self, state: ServableState) -> None:
        """Takes over the note of a load that serves now; forgets versions that ended."""
        with self._lock:
            if state.manager_state is ManagerState.END:
                for notes in (self._notes, self._of_loads, self._before_hangs):
                    notes.pop(state.id, None)
                return
            loaded = self._of_loads.get(state.id)
            if loaded is not None and state.note == loaded[0]:
                self._notes[state.id] = self._of_loads.pop(state.id)

    def _publish(
        self, servable_id: ServableId, text: str, resident_bytes: int | None
    ) -> None:
        self._loop.post(
            lambda: self._manager.annotate(
                servable_id, note=text, resident_bytes=resident_bytes
            )
        )
