"""Carries out unloads: withdraws a version, waits for its pins, destroys it on a pool.

A version that is still pinned occupies no thread. The servable is destroyed on the
pool, never on the thread of the request that released the last pin. Then memory is
given back to the system, and only then is the unload over.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Final

from managers.freed_memory import MemoryReleaser
from managers.harness_state import HarnessState
from managers.load_admission import LoadAdmission
from managers.managed_version import ManagedVersion
from managers.patient_pool import PatientPool
from managers.serving_map import ServingMap, retire
from managers.version_events import VersionEvents
from tfs.core.clock import Clock
from tfs.core.pacing import yield_to_requests
from tfs.core.servable_state import ManagerState

log = logging.getLogger(__name__)

# If a caller looked up ``release`` before its handle was retired and calls it
# afterwards, nobody is told. So pins are looked at again: soon after retiring, because
# such a call usually follows within two bytecodes, and then ever less often, because a
# caller may keep the bound method.
_FIRST_RECHECK_S: Final = 0.001
_LAST_RECHECK_S: Final = 0.25


class _QuiescingVersion:
    """A retired version that was still pinned when last looked at."""

    __slots__ = ("_recheck_s", "managed", "recheck_at_s")

    def __init__(self, managed: ManagedVersion, now_s: float) -> None:
        self.managed = managed
        self._recheck_s = _FIRST_RECHECK_S
        self.recheck_at_s = now_s + self._recheck_s

    def is_drained(self, now_s: float) -> bool:
        """Returns whether nothing pins it any more; if not, looks again later."""
        handle = self.managed.handle
        if handle is None or not handle.num_pins:
            return True
        if now_s >= self.recheck_at_s:
            self._recheck_s = min(2 * self._recheck_s, _LAST_RECHECK_S)
            self.recheck_at_s = now_s + self._recheck_s
        return False


class UnloadExecution:
    """Unloads versions whose harness was asked to unload. Thread-safe.

    Args:
        pool: Runs the loaders' unloading.
        clock: Tells when to look at pins again.
        admission: Told when an unload is over.
        events: Where what happens is published.
        serving_map: Where loaded versions are.
        releaser: Gives memory back; None does not.
        on_change: Called with a servable's name when one of its versions has moved on,
            or may no longer be pinned; on any thread, even a request's.

    """

    def __init__(
        self,
        pool: PatientPool,
        clock: Clock,
        *,
        admission: LoadAdmission,
        events: VersionEvents,
        serving_map: ServingMap,
        releaser: MemoryReleaser | None,
        on_change: Callable[[str], None],
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._admission = admission
        self._events = events
        self._serving_map = serving_map
        self._releaser = releaser
        self._on_change = on_change
        # Guards the field below; leaf.
        self._lock = threading.Lock()
        self._quiescing: list[_QuiescingVersion] = []

    def begin(self, managed: ManagedVersion) -> None:
        """Takes a version out of service, and destroys it once nothing pins it."""
        harness, handle = managed.harness, managed.handle
        assert handle is not None
        harness.transition(HarnessState.QUIESCING)
        self._events.publish(managed, ManagerState.UNLOADING)
        name = harness.id.name
        if retire(self._serving_map, handle, lambda: self._on_change(name)):
            self.destroy(managed)
            return
        log.info(
            "event=waiting_for_pins servable=%s num_pins=%d",
            harness.id.slashed,
            handle.num_pins,
        )
        with self._lock:
            self._quiescing.append(_QuiescingVersion(managed, self._clock.now()))
        self._on_change(name)

    def take_drained(self, now_s: float) -> list[ManagedVersion]:
        """Takes out the versions that are no longer pinned."""
        drained, pinned = list[ManagedVersion](), list[_QuiescingVersion]()
        with self._lock:
            for each in self._quiescing:
                if each.is_drained(now_s):
                    drained.append(each.managed)
                else:
                    pinned.append(each)
            self._quiescing = pinned
        return drained

    def next_s(self) -> float | None:
        """Returns when, by the clock, to look at pins again; None if there are none."""
        with self._lock:
            return min((each.recheck_at_s for each in self._quiescing), default=None)

    def destroy(self, managed: ManagedVersion) -> None:
        """Destroys a version that nothing pins, as soon as a thread is free."""
        managed.harness.transition(HarnessState.QUIESCED)
        try:
            self._pool.submit(managed, lambda: self._run(managed))
        except RuntimeError:
            self._run(managed)  # the pool is closed, so no other thread will

    def release_memory(self, now_s: float) -> float | None:
        """Gives back memory that is owed; returns when to call again if it is too early."""
        owed_at_s = None if self._releaser is None else self._releaser.owed_at_s
        if self._releaser is None or owed_at_s is None or owed_at_s > now_s:
            return owed_at_s
        with contextlib.suppress(RuntimeError):  # closing
            self._pool.submit(None, self._releaser.release_owed)
        return None

    def _run(self, managed: ManagedVersion) -> None:
        """Runs on the pool."""
        harness = managed.harness
        if managed.handle is not None:
            managed.handle.drop()
        harness.unload()
        if self._releaser is not None:
            self._releaser.note_unload()
        yield_to_requests()
        self._admission.release(managed)
        self._admission.end(managed)
        log.info(
            "event=unloaded servable=%s reason=%r", harness.id.slashed, harness.reason
        )
        self._events.publish(managed, ManagerState.END)
        managed.tell(harness.error)
        self._on_change(harness.id.name)
