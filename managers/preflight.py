"""Finds out about versions, and promises them memory, before a load is requested.

A policy that unloads first takes away what serves before it is known whether the new
version will load. Much can be known without loading it: how much memory it takes,
whether that will fit, and whether its files are whole. RoomCheck asks for this and
decides.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from managers.harness_snapshot import HarnessSnapshot
from managers.harness_state import HarnessState
from managers.load_admission import LoadAdmission
from managers.managed_version import ManagedVersion
from managers.version_events import VersionEvents
from managers.version_executor import VersionExecutor
from managers.version_table import VersionTable

log = logging.getLogger(__name__)


class Preflight:
    """Acts on NEW versions, and on those refused for want of memory. Never blocks.

    Confined to one caller at a time, which is also the only one to request loads.
    Versions are named by their snapshots; nothing happens if a version is not managed
    any more.

    Args:
        versions: All that are managed.
        admission: Decides about memory.
        executor: Asks loaders on its pool, and ends versions that will not load.
        events: Publishes the states of versions.
        on_change: Called with a name when one of its versions has an answer.

    """

    def __init__(
        self,
        versions: VersionTable,
        admission: LoadAdmission,
        executor: VersionExecutor,
        events: VersionEvents,
        on_change: Callable[[str], None],
    ) -> None:
        self._versions = versions
        self._admission = admission
        self._executor = executor
        self._events = events
        self._on_change = on_change
        # Guards is_asking and was_asked of every version; leaf.
        self._lock = threading.Lock()

    @property
    def has_memory_limit(self) -> bool:
        """Whether loads reserve memory."""
        return self._admission.has_limit

    @property
    def is_room_coming(self) -> bool:
        """Whether something loads or unloads, so that there may be room afterwards."""
        return self._admission.num_executing > 0

    def take_room_made(self) -> bool:
        """Whether room may have been made since this was last called."""
        return self._admission.take_room_made()

    def is_refused(self, version: HarnessSnapshot) -> bool:
        """Whether a version ended only because others had the memory."""
        managed = self._find(version)
        return managed is not None and managed.is_refused

    def is_asking(self, version: HarnessSnapshot) -> bool:
        """Whether a version's loader is being asked; it cannot be loaded meanwhile."""
        managed = self._find(version)
        return managed is not None and managed.is_asking

    def estimate(self, version: HarnessSnapshot) -> bool:
        """Asks what a NEW version takes; returns whether that is known.

        The loader is asked once, on the load pool, and ``on_change`` is called
        afterwards. Only permanent faults are kept; the load will report any others.
        """
        managed = self._find(version)
        if managed is None:
            return True
        with self._lock:
            if managed.was_asked or managed.is_asking:
                return managed.was_asked
            managed.is_asking = True

        def ask() -> None:
            managed.harness.estimate_ahead()
            with self._lock:
                managed.is_asking, managed.was_asked = False, True

        self._executor.submit(managed, ask, on_closed=lambda: None)
        return managed.was_asked

    def end_if_flawed(self, version: HarnessSnapshot) -> bool:
        """Ends a NEW version with a permanent fault; returns whether it has one."""
        managed = self._find_new(version)
        flaw = None if managed is None else managed.harness.flaw
        if managed is None or flaw is None:
            return False
        managed.harness.fail(flaw)
        self._executor.end_load(managed)
        return True

    def promise_room(
        self, version: HarnessSnapshot, going: Sequence[HarnessSnapshot]
    ) -> bool:
        """Keeps memory for a NEW version, if it fits once ``going`` are unloaded.

        This uses the last estimate; a version without one is taken to fit. Other loads
        wait until this load has been decided on, or is not aspired any more. Returns
        whether it fits.
        """
        managed = self._find(version)
        return managed is not None and self._admission.promise(
            managed, self._find_all(going)
        )

    def refuse(
        self, version: HarnessSnapshot, going: Sequence[HarnessSnapshot]
    ) -> None:
        """Ends a NEW version that would not fit even if ``going`` were unloaded."""
        managed = self._find_new(version)
        if managed is not None:
            self._admission.refuse(managed, self._find_all(going))
            self._executor.end_load(managed)

    def manage_again(
        self, version: HarnessSnapshot, going: Sequence[HarnessSnapshot], why: str
    ) -> bool:
        """Begins the life of a refused version anew, if it fits without ``going``.

        Publishes START, and keeps room for the version as ``promise_room`` does.
        Returns whether it did so; if not, nothing changed.
        """
        refused = self._find(version)
        if refused is None or not (refused.is_refused and refused.can_be_forgotten):
            return False
        wanted = refused.reason
        try:
            harness = refused.harness.renewed(
                self._versions.next_generation(), "; ".join(filter(None, (wanted, why)))
            )
        except Exception as error:  # its files may be gone
            log.warning(
                "event=not_tried_again servable=%s error=%s", version.id.slashed, error
            )
            self._admission.give_up_on(refused)
            return False
        harness.estimate = refused.harness.estimate
        managed = ManagedVersion(harness, wanted)
        if not self._admission.promise(managed, self._find_all(going)):
            return False
        self._versions.remove(refused)
        self._versions.add(managed)
        self._events.start(managed)
        self._on_change(version.id.name)
        return True

    def give_up(self, version: HarnessSnapshot) -> None:
        """Gives up a version's load; one that is running is undone when it has ended."""
        managed = self._find(version)
        if managed is not None and self._admission.cancel(managed):
            self._executor.end_load(managed)

    def _find(self, version: HarnessSnapshot) -> ManagedVersion | None:
        return self._versions.find(version.id, version.generation)

    def _find_new(self, version: HarnessSnapshot) -> ManagedVersion | None:
        managed = self._find(version)
        if managed is None or managed.harness.state is not HarnessState.NEW:
            return None
        return managed

    def _find_all(self, versions: Sequence[HarnessSnapshot]) -> list[ManagedVersion]:
        return [each for v in versions if (each := self._find(v)) is not None]
