"""Every version that a manager has, and what is published of each: one life.

While changed files replace what is served, a version has two rows: the elder, which
serves, and an heir of a higher generation. To observers the version stays AVAILABLE. What
happens to the heir before it serves is published as a note, and what happens to the elder
afterwards is not published at all.

Promises, per version (docs/lifecycle.md):

* START is published when it is first managed, LOADING before its loader runs, AVAILABLE
  as soon as it can be requested and before anything else learns that it is loaded,
  UNLOADING before it stops being requestable, and END once its memory is free, or with
  the error once it has failed.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

from managers.serving_map import Handle, ServingMap
from managers.versions.harness_state import END_STATES, HarnessSnapshot, HarnessState
from managers.versions.version import LoaderData, RetryOptions, Version
from tfs.core.clock import Clock
from tfs.core.errors import FailedPrecondition, ServingError
from tfs.core.event_bus import EventBus
from tfs.core.resources import ResourceAllocation
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.core.source import ServableData

log = logging.getLogger(__name__)

_STATES: Final = {
    HarnessState.NEW: ManagerState.START,
    HarnessState.LOAD_REQUESTED: ManagerState.START,
    HarnessState.LOAD_APPROVED: ManagerState.START,
    HarnessState.LOADING: ManagerState.LOADING,
    HarnessState.READY: ManagerState.AVAILABLE,
    HarnessState.UNLOAD_REQUESTED: ManagerState.AVAILABLE,
    HarnessState.QUIESCING: ManagerState.UNLOADING,
    HarnessState.QUIESCED: ManagerState.UNLOADING,
    HarnessState.UNLOADING: ManagerState.UNLOADING,
}
"""The state that was published last, for a version that is not over."""

_MOVING: Final = (ManagerState.START, ManagerState.LOADING, ManagerState.UNLOADING)
_LATE: Final = (
    "it takes very long, and nobody waits for it any more: does its storage answer, or "
    "does its code hang?"
)


class VersionTable:
    """The versions of a manager, found by name, by number and by generation.

    Thread-safe. Finding one costs the same however many there are, and takes no lock.

    Args:
        bus: Where states are published, in order; None publishes nothing.
        clock: For the time of each state, and for pauses between attempts.
        retry: When failed loads are tried again.

    Attributes:
        lock: Orders what is changed here, published, and decided on memory (LoadAdmission
            takes it, too). Held while publishing; ranks before the bus's lock.

    """

    def __init__(
        self,
        bus: EventBus[ServableState] | None,
        clock: Clock,
        retry: RetryOptions | None = None,
    ) -> None:
        self._bus = bus
        self._clock = clock
        self._retry = retry or RetryOptions()
        # Guards changes of both tables below, and what Version says that the table
        # writes. Both are copied by one step of the interpreter where they are read.
        self.lock = threading.Lock()
        self._by_name: dict[str, dict[int, Version]] = {}
        # The generations of each version, oldest first: one as a rule, two while
        # changed files replace what serves. The tuples are replaced and never changed.
        self._by_id: dict[ServableId, tuple[Version, ...]] = {}
        self._generations = itertools.count(1)

    # -- finding -----------------------------------------------------------------------

    def names(self) -> list[str]:
        """Returns the names of all servables that have a version."""
        return list(self._by_name)

    def stream(self, name: str) -> list[Version]:
        """Returns the versions of one servable, in the order they were added."""
        return list(self._by_name.get(name, {}).values())

    def snapshots(self, name: str) -> list[HarnessSnapshot]:
        """Returns where every version of one servable stands."""
        return [version.snapshot() for version in self.stream(name)]

    def find(
        self, servable_id: ServableId, generation: int | None = None
    ) -> Version | None:
        """Returns that generation of a version, or the newest; None if there is none."""
        for version in reversed(self._by_id.get(servable_id, ())):
            if generation in (None, version.generation):
                return version
        return None

    def find_serving(self, servable_id: ServableId) -> Version | None:
        """Returns the newest generation that requests can reach; None without any."""
        for version in reversed(self._by_id.get(servable_id, ())):
            if version.is_serving:
                return version
        return None

    def siblings(self, version: Version) -> Sequence[Version]:
        """Returns the other generations of a version, oldest first."""
        same = self._by_id.get(version.id, ())
        if len(same) == 1 and same[0] is version:
            return ()  # as a rule
        return [each for each in same if each is not version]

    def is_replaced(self, version: Version) -> bool:
        """Whether newer contents of a version are loaded, though not aspired any more."""
        return any(
            other.generation > version.generation
            and other.state is HarnessState.READY
            and not other.is_aspired
            for other in self.siblings(version)
        )

    # -- what is managed ---------------------------------------------------------------

    def manage(
        self,
        data: LoaderData,
        *,
        reason: str = "",
        is_replacement: bool = False,
        is_aspired: bool = True,
        heir_error: ServingError | None = None,
    ) -> Version:
        """Adds a version, as the newest of those with its number; publishes START.

        A version that carries an error is a failed one, and END is published too.

        Args:
            data: The version and its loader, or why there is none.
            reason: Why it is wanted, for people.
            is_replacement: Whether there may already be one of the same number, which
                this one is to replace.
            is_aspired: Whether a source wants it.
            heir_error: Why other contents of the version failed that were to replace
                it.

        Raises:
            FailedPrecondition: ``This servable is already being managed: ...``;
                nothing changed.

        """
        version = self._make(data, reason, is_aspired=is_aspired)
        version.heir_error = heir_error
        with self.lock:
            if not is_replacement and data.id in self._by_id:
                raise FailedPrecondition(
                    f"This servable is already being managed: {data.id}"
                )
            self._add_locked(version)
            self._start_locked(version)
        return version

    def stop_managing(
        self, servable_id: ServableId, generation: int | None = None
    ) -> None:
        """Forgets a version that is not loaded; the newest of several generations.

        Raises:
            FailedPrecondition: It is not managed, or is neither new nor over; nothing
                changed.

        """
        version = self.find(servable_id, generation)
        if version is None:
            raise FailedPrecondition(
                f"This servable is not being managed: {servable_id}"
            )
        with self.lock:
            if not self._remove_locked(version):
                raise FailedPrecondition(
                    "This servable is not in a new or end state and we cannot stop "
                    f"managing it: {servable_id} {version.state.value}"
                )
            siblings = self.siblings(version)
            is_last = all(other.is_abandoned for other in siblings)
            if is_last and version.state is HarnessState.NEW:
                self._publish_locked(version, ManagerState.END)
            for heir in siblings:
                self._start_locked(heir)

    def renew(
        self,
        failed: Version,
        why: str,
        *,
        num_failures: int = 0,
        estimate: ResourceAllocation | None = None,
        is_admitted: Callable[[Version], bool] = lambda _: True,
    ) -> Version | None:
        """Manages a failed version anew, with a new loader; publishes START.

        Args:
            failed: The version; it is forgotten.
            why: The reason, in words for people.
            num_failures: How many earlier failed attempts still count.
            estimate: What it takes, if the loader need not be asked again.
            is_admitted: Whether the new one may be managed.

        Returns:
            The new one; None if there is none, and nothing changed: the version has not
            failed, is not admitted, or no new loader can be made for it.

        """
        if failed.state is not HarnessState.ERROR or not failed.can_be_renewed:
            return None
        try:
            loader = failed.loader
            if failed.is_loaded and failed.make_another is not None:
                loader = failed.make_another()
        except Exception as error:  # its files may be gone
            log.warning(
                "event=not_tried_again servable=%s error=%s", failed.id.slashed, error
            )
            return None
        version = self._make(
            ServableData(failed.id, loader),
            failed.why_managed,
            is_aspired=failed.is_aspired,
            num_failures=num_failures,
        )
        version.reason = "; ".join(filter(None, (failed.why_managed, why)))
        version.estimate = estimate
        if not is_admitted(version):
            return None
        with self.lock:
            self._remove_locked(failed)
            self._add_locked(version)
            self._start_locked(version)
        return version

    def want_again(self, version: Version, reason: str) -> None:
        """Notes that a source wants a version again which is still managed."""
        version.is_aspired = True
        version.reason = reason
        with self.lock:  # it is no longer a stand-in for its own new contents
            if version.heir_error is not None:
                version.heir_error = None
                self._republish_locked(version)

    def _make(
        self,
        data: LoaderData,
        reason: str,
        *,
        is_aspired: bool,
        num_failures: int = 0,
    ) -> Version:
        return Version(
            data,
            retry=self._retry,
            clock=self._clock,
            generation=next(self._generations),
            is_aspired=is_aspired,
            reason=reason,
            num_failures=num_failures,
        )

    def _add_locked(self, version: Version) -> None:
        stream = self._by_name.setdefault(version.id.name, {})
        stream[version.generation] = version
        self._by_id[version.id] = (*self._by_id.get(version.id, ()), version)

    def _remove_locked(self, version: Version) -> bool:
        """Removes a version if it can be forgotten; returns whether it was removed."""
        same = self._by_id.get(version.id, ())
        if version not in same or not version.can_be_forgotten:
            return False
        left = tuple(each for each in same if each is not version)
        if left:
            self._by_id[version.id] = left
        else:
            del self._by_id[version.id]
        stream = self._by_name[version.id.name]
        del stream[version.generation]
        if not stream:
            del self._by_name[version.id.name]
        return True

    # -- what is published -------------------------------------------------------------

    def publish(self, version: Version, manager_state: ManagerState) -> None:
        """Publishes that a version entered a state, as seen from outside."""
        with self.lock:
            self._publish_locked(version, manager_state)

    def make_available(
        self, version: Version, handle: Handle, serving_map: ServingMap
    ) -> None:
        """Lets a version be requested, then publishes AVAILABLE."""
        with self.lock:
            version.handle = handle
            # Beside an elder that serves, START was not published.
            version.is_started = True
            serving_map.publish(handle)
            self._replace_elders_locked(version)
            self._publish_locked(version, ManagerState.AVAILABLE)

    def annotate(
        self,
        servable_id: ServableId,
        *,
        note: str | None = None,
        resident_bytes: int | None = None,
        is_loading: bool = False,
    ) -> None:
        """Adds what was found out about a version to its state.

        If the version cannot be requested yet, this is published with its next state.

        Args:
            servable_id: The version.
            note: A sentence for people; None leaves the one it has.
            resident_bytes: Memory measured for it; None leaves what is known.
            is_loading: Whether this is about contents that are being loaded, rather
                than about older ones that serve under the same id meanwhile.

        """
        version = None if is_loading else self.find_serving(servable_id)
        version = version or self.find(servable_id)
        if version is None:
            return
        with self.lock:
            known = version.note, version.resident_bytes
            if note is not None:
                version.note = note
            if resident_bytes is not None:
                version.resident_bytes = resident_bytes
            if known != (version.note, version.resident_bytes):
                self._republish_locked(version)

    def report_error(
        self,
        servable_id: ServableId,
        error: ServingError | None,
        *,
        is_loading: bool = False,
    ) -> bool:
        """Shows a fault of an available version in its state; None mends it.

        The version stays loaded and aspired and answers for itself. ``is_loading`` is as
        of ``annotate``. Returns whether there is such a version.
        """
        find = self.find if is_loading else self.find_serving
        version = find(servable_id)
        if version is None:
            return False
        with self.lock:
            version.fault = error
            self._republish_locked(version)
        return True

    def note_late(self, version: Version, *, is_late: bool) -> None:
        """Publishes the current state again, and whether it takes too long.

        The heirs of a version that nobody waits for any more start.
        """
        with self.lock:
            state = version.state  # read once, as its pool thread may change it
            has_come = state in END_STATES or version.is_serving
            version.is_late = is_late and not has_come
            if not has_come:
                self._publish_locked(version, _STATES[state])
            if is_late:
                for heir in self.siblings(version):
                    self._start_locked(heir)

    def _start_locked(self, version: Version) -> None:
        """Publishes START, and END if it has failed already, unless there is an elder.

        The heir of an unloading version starts when that is gone, or when nobody waits
        for it any more. The heir of a serving version shows only as a note.
        """
        if version.is_started or version.is_serving:
            return
        elders = _elders(version, self.siblings(version))
        if not elders:
            version.is_started = True
            self._replace_elders_locked(version)
        is_over = version.is_over
        if not elders or not is_over:
            self._publish_locked(version, ManagerState.START)
        if is_over:
            self._publish_locked(version, ManagerState.END)

    def _republish_locked(self, version: Version) -> None:
        # LOADING: it can be requested already, and its manager has yet to move it to
        # READY.
        is_ready = version.state in (HarnessState.LOADING, HarnessState.READY)
        if not (version.is_serving and is_ready):
            return
        heirs = [
            other
            for other in self.siblings(version)
            if other.generation > version.generation and other.is_aspired
        ]
        if heirs and self._bus is not None:
            # Notes about the old contents must not hide how the new ones do.
            wall_s = self._clock.wall_s()
            self._bus.publish(_published_beside(version, heirs[-1], wall_s))
            return
        self._publish_locked(version, ManagerState.AVAILABLE)

    def _replace_elders_locked(self, version: Version) -> None:
        for other in self.siblings(version):
            if other.generation < version.generation:
                other.is_replaced = True

    def _publish_locked(self, version: Version, manager_state: ManagerState) -> None:
        version.is_end_told = manager_state is ManagerState.END
        if self._bus is None or version.is_replaced:
            return
        wall_s = self._clock.wall_s()
        siblings = self.siblings(version)  # usually none
        elders = _elders(version, siblings) if siblings else ()
        if elders and manager_state is not ManagerState.AVAILABLE:
            for elder in elders:
                if not version.is_aspired:
                    # It was given up, perhaps for still newer contents. How it ends is
                    # no fault of the version that serves. If the elder ends too, what
                    # comes next is published.
                    if elder.is_aspired:
                        self._republish_locked(elder)
                elif elder.is_serving:
                    self._bus.publish(_published_beside(elder, version, wall_s))
            return
        if not (version.is_started or version.is_aspired):
            # No observer knows of it: it was to replace a version that is gone by now.
            return
        self._bus.publish(_published_state(version, manager_state, wall_s))


def _elders(version: Version, siblings: Sequence[Version]) -> list[Version]:
    """Returns the elders that a version has to wait for."""
    return [
        other
        for other in siblings
        if other.generation < version.generation
        and not other.is_abandoned
        and not (other.is_end_told or other.is_replaced)
    ]


def _published_state(
    version: Version, manager_state: ManagerState, wall_s: float
) -> ServableState:
    """Returns what to publish of a version when it enters a state now."""
    is_available = manager_state is ManagerState.AVAILABLE
    entered, entered_s, serves_since_s = version.published
    if entered is not manager_state or not entered_s:
        entered_s = wall_s
    # The state is published again when something is noted.
    since_s = entered_s
    if is_available:
        since_s = serves_since_s = serves_since_s or wall_s
    version.published = manager_state, entered_s, serves_since_s
    # Notes from the time when it served say nothing about its unload.
    is_leaving = manager_state in (ManagerState.UNLOADING, ManagerState.END)
    is_late = version.is_late and manager_state in _MOVING
    error = version.fault or version.heir_error if is_available else version.error
    return ServableState(
        id=version.id,
        manager_state=manager_state,
        error=error,
        reason=version.reason,
        since_s=since_s,
        resident_bytes=version.resident_bytes,
        note=_LATE if is_late else "" if is_leaving else version.note,
        is_late=is_late,
        is_faulty=is_available and version.fault is not None,
    )


def _published_beside(version: Version, heir: Version, wall_s: float) -> ServableState:
    """Returns what to publish while a version serves and ``heir`` is to replace it."""
    now = heir.snapshot()
    progress = f"what was loaded before serves; replacement: {now.state.value}"
    return ServableState(
        id=version.id,
        manager_state=ManagerState.AVAILABLE,
        error=now.error or version.fault,
        reason=f"{heir.reason}; {progress}",
        since_s=version.published[2] or wall_s,
        resident_bytes=version.resident_bytes,
        note=version.note,  # it still runs where it did
        is_late=heir.is_late,
        is_changing=now.state not in END_STATES,
        is_faulty=version.fault is not None,
    )
