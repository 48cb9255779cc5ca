"""Carries out loads and unloads on their pools, up to AVAILABLE or END.

Each load and each unload has two phases. *Deciding* is quick and happens in order: the
version is asked to change its state, and memory is reserved (LoadAdmission).
*Executing* blocks for as long as the loader does and happens on a pool, so that a slow
load delays no unload.

Each attempt to load estimates, is admitted, and loads. A load ends once: if it did not
become AVAILABLE, the part that finds this out calls ``end_load``. An unload withdraws a
version, waits for its pins, and destroys the servable on the pool, never on the thread of
the request that released the last pin. Then memory is given back to the system, and only
then is the unload over.

Waiting occupies no thread: for memory, a load waits with LoadAdmission; for the end of a
pause, and for pins, versions wait here until ``collect`` moves them on. Only one part at a
time moves a version on, because its state refuses a second one.

(TensorFlow Serving: core/basic_manager.h.)
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from managers.loading.load_admission import LoadAdmission, ResourceTracker
from managers.serving_map import ServingMap, retire
from managers.versions.harness_state import HarnessState
from managers.versions.load_attempts import (
    abandon_load,
    estimate_again,
    estimate_ahead,
    estimate_once,
    load_once,
    unload,
)
from managers.versions.version import LoadStatus, Version
from managers.versions.version_table import VersionTable
from tfs.core.clock import Clock
from tfs.core.errors import (
    Cancelled,
    NotFound,
    serving_error,
)
from tfs.core.executor import Executor
from tfs.core.loop.pacing import yield_to_requests
from tfs.core.process_memory import MemoryReleaser
from tfs.core.servable_handle import ServableHandle
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState

log = logging.getLogger(__name__)

PATIENCE_S: Final = 60.0
"""Seconds after which others stop waiting for a load. Healthy loads rarely take longer;
one that does goes on."""

# If a caller looked up ``release`` before its handle was retired and calls it
# afterwards, nobody is told. So pins are looked at again: soon after retiring, because
# such a call usually follows within two bytecodes, and then ever less often, because a
# caller may keep the bound method.
_FIRST_RECHECK_S: Final = 0.001
_LAST_RECHECK_S: Final = 0.25


class VersionExecutor:
    """Loads and unloads the versions of a table. Thread-safe; does not own its executors.

    Args:
        table: The versions.
        load_executor: Runs attempts to load.
        unload_executor: Runs the loaders' unloading; may be the same.
        clock: For pauses, and when to look at pins again.
        tracker: What loads reserve from; None lets every load through.
        releaser: Gives memory back after unloads and failed loads; None does not.
        pre_load_hook: Called before each first attempt, on the pool.
        patience_s: How long a load or an unload may take before others stop waiting for
            it. It keeps its thread then, and the pool gets another one in its place.
        on_change: Called with a servable's name when ``collect`` has something to do for
            it, or when one of its versions has moved on. It must be quick, because it is
            called on any thread, even a request's.

    Attributes:
        admission: Decides about memory.
        serving_map: Where loaded versions appear; the same object for ever.

    """

    def __init__(
        self,
        table: VersionTable,
        load_executor: Executor,
        unload_executor: Executor,
        clock: Clock,
        *,
        tracker: ResourceTracker | None = None,
        releaser: MemoryReleaser | None = None,
        pre_load_hook: Callable[[ServableId], None] | None = None,
        patience_s: float = PATIENCE_S,
        on_change: Callable[[str], None] = lambda _name: None,
    ) -> None:
        self._table = table
        self._load_pool, self._unload_pool = load_executor, unload_executor
        self._patience_s = patience_s
        self._clock = clock
        self.admission = LoadAdmission(tracker, table.lock)
        self.serving_map = ServingMap()
        self._releaser = releaser
        self._pre_load_hook = pre_load_hook
        self._on_change = on_change
        # Guards the fields below, and is_ended, is_asking and was_asked of every version;
        # leaf.
        self._lock = threading.Lock()
        self._paused: dict[Version, None] = {}
        # Retired versions that were pinned when last looked at: when to look at them
        # again, and after how long then.
        self._quiescing: dict[Version, tuple[float, float]] = {}

    def load_status(self, servable_id: ServableId) -> LoadStatus | None:
        """Returns how a version's load goes or went; None if it is not managed."""
        version = self._table.find(servable_id)
        if version is None:
            return None
        return version.load_status(is_deferred=self.admission.is_deferred(version))

    # -- what others decide ------------------------------------------------------------

    def load(
        self,
        servable_id: ServableId,
        *,
        generation: int | None = None,
        reason: str = "",
    ) -> None:
        """Begins to load a managed version; does not block on a thread pool.

        Raises:
            NotFound: It is not managed.
            FailedPrecondition: A load was requested before; nothing changed.

        """
        version = self._find(servable_id, generation)
        version.request_load()
        version.reason = reason or version.reason
        self._go_on(version)

    def cancel_load(
        self, servable_id: ServableId, generation: int | None = None
    ) -> None:
        """Gives a load up; see :meth:`Version.cancel`. Never blocks."""
        version = self._table.find(servable_id, generation)
        if version is not None and self.admission.cancel(version):
            self.end_load(version)

    def unload(
        self,
        servable_id: ServableId,
        *,
        generation: int | None = None,
        reason: str = "",
    ) -> None:
        """Takes a version out of service and begins to unload it; never blocks.

        The version is destroyed on the unload pool once nothing pins it.

        Raises:
            NotFound: It is not managed.
            FailedPrecondition: It is not loaded, or is being unloaded already; nothing
                changed.

        """
        version = self._find(servable_id, generation)
        version.request_unload()
        version.reason = reason or version.reason
        self.admission.begin_unload(version)
        self._withdraw(version)

    def _find(self, servable_id: ServableId, generation: int | None) -> Version:
        version = self._table.find(servable_id, generation)
        if version is None:
            raise NotFound(
                f"This servable is not being managed by the manager: {servable_id}"
            )
        return version

    # -- before a load is asked for ----------------------------------------------------

    def ask_estimate(self, version: Version) -> bool:
        """Asks what a NEW version takes; returns whether that is known.

        The loader is asked once, on the load pool, and ``on_change`` is called
        afterwards. Only permanent faults are kept; the load will report any others.
        """
        with self._lock:
            if version.was_asked or version.is_asking:
                return version.was_asked
            version.is_asking = True

        def ask() -> None:
            estimate_ahead(version)
            with self._lock:
                version.is_asking, version.was_asked = False, True

        self._submit(version, ask, on_closed=lambda: None)
        return version.was_asked

    def end_if_flawed(self, version: Version) -> bool:
        """Ends a NEW version with a permanent fault; returns whether it has one."""
        if version.state is not HarnessState.NEW or version.flaw is None:
            return False
        version.fail(version.flaw)
        self.end_load(version)
        return True

    def refuse(self, version: Version, going: Sequence[Version]) -> None:
        """Ends a NEW version that would not fit even if ``going`` were unloaded."""
        if version.state is HarnessState.NEW:
            self.admission.refuse(version, going)
            self.end_load(version)

    # -- what waits --------------------------------------------------------------------

    def collect(self) -> float | None:
        """Moves versions on that need not wait any more; returns when to call it again.

        It begins retries whose pause is over and loads that fit now, ends loads that
        will never fit, destroys versions that nothing pins any more, gives memory back
        to the system, and lets others stop waiting for loads and unloads that hang.
        Does not block if the executors are thread pools.

        Returns:
            The time, by the clock, when there will be something to do; None if only a
            change can bring something.

        """
        now_s = self._clock.now()
        drained = self._take_drained(now_s)
        decided = self.admission.take_decided()
        due = self._take_due(now_s)
        for version in drained:
            self._destroy(version)
        for version in decided:
            if version.is_over:
                self.end_load(version)
            else:
                self._go_on(version)
        for version in due:
            self._go_on(version)
        # Computed last, because inline executors have moved versions on by then.
        with self._lock:
            waits_s = [each.retry_at_s for each in self._paused]
            waits_s += [recheck_at_s for recheck_at_s, _ in self._quiescing.values()]
        times_s = (
            *waits_s,
            self._load_pool.relieve(),
            self._unload_pool.relieve(),
            self._release_memory(now_s),
        )
        return min((t for t in times_s if t is not None), default=None)

    def _take_due(self, now_s: float) -> list[Version]:
        """Takes out the loads whose pause is over."""
        with self._lock:
            due = [
                version
                for version in self._paused
                if (retry_at_s := version.retry_at_s) is not None
                and retry_at_s <= now_s
            ]
            for version in due:
                del self._paused[version]
        return due

    def _take_drained(self, now_s: float) -> list[Version]:
        """Takes out the versions that are no longer pinned."""
        drained = []
        with self._lock:
            for version, (recheck_at_s, pause_s) in list(self._quiescing.items()):
                if version.handle is None or not version.handle.num_pins:
                    drained.append(version)
                    del self._quiescing[version]
                elif now_s >= recheck_at_s:
                    pause_s = min(2 * pause_s, _LAST_RECHECK_S)
                    self._quiescing[version] = now_s + pause_s, pause_s
        return drained

    def _release_memory(self, now_s: float) -> float | None:
        """Gives back memory that is owed; returns when to call again if it is too early."""
        owed_at_s = None if self._releaser is None else self._releaser.owed_at_s
        if self._releaser is None or owed_at_s is None or owed_at_s > now_s:
            return owed_at_s
        with contextlib.suppress(RuntimeError):  # closing
            self._unload_pool.submit(self._releaser.release_owed, self._patience_s)
        return None

    def _wait_no_longer(self, version: Version) -> None:
        """Lets others stop waiting for a version that hangs, and publishes that."""
        log.warning(
            "event=version_late servable=%s state=%s",
            version.id.slashed,
            version.state.value,
        )
        self._table.note_late(version, is_late=True)
        self._on_change(version.id.name)

    # -- loads -------------------------------------------------------------------------

    def _go_on(self, version: Version) -> None:
        """Continues a load, from wherever it stands, as soon as a thread is free."""

        def give_up() -> None:
            if not version.cancel():
                version.fail(Cancelled(f"shutting down: {version.id}"))
            self.end_load(version)

        self._submit(version, lambda: self._attempt(version), give_up)

    def _submit(
        self,
        version: Version,
        run: Callable[[], None],
        on_closed: Callable[[], None],
    ) -> None:
        """Has ``run`` called for a version on the pool; ``on_closed`` if that is closed."""

        def note_end() -> None:
            if version.is_late:
                self._table.note_late(version, is_late=False)
            self._on_change(version.id.name)  # the pool has room again

        try:
            self._load_pool.submit(
                run, self._patience_s, partial(self._wait_no_longer, version), note_end
            )
        except RuntimeError:
            self._on_change(version.id.name)
            on_closed()

    def end_load(self, version: Version) -> None:
        """Publishes that a load failed; the version is in ERROR. Idempotent."""
        with self._lock:
            if version.is_ended:
                return
            version.is_ended = True
            self._paused.pop(version, None)
        self.admission.release(version)
        self.admission.end(version)
        if self._releaser is not None:
            self._releaser.owe()  # frees the memory that the attempt had allocated
        if isinstance(version.error, Cancelled):  # nobody wants it; nothing is wrong
            log.info("event=load_cancelled servable=%s", version.id.slashed)
        else:
            log.warning(
                "event=load_failed servable=%s error=%s",
                version.id.slashed,
                version.error,
            )
        self._table.publish(version, ManagerState.END)
        self._on_change(version.id.name)

    def _attempt(self, version: Version) -> None:
        """Makes one attempt: estimates, is admitted, and loads."""
        if version.state is HarnessState.LOAD_REQUESTED:
            if version.estimate is None and not estimate_once(version):
                self._pause_or_end(version)
                return
            if not self.admission.admit(version) or not version.approve_load():
                if version.is_over:
                    self.end_load(version)
                return
            version.transition(HarnessState.LOADING)
            self._table.publish(version, ManagerState.LOADING)
            if not self._ran_hook(version):
                return
        if version.state is HarnessState.LOADING:
            if load_once(version):
                self._make_available(version)
            else:
                self._pause_or_end(version)

    def _ran_hook(self, version: Version) -> bool:
        if self._pre_load_hook is None:
            return True
        try:
            self._pre_load_hook(version.id)
        except Exception as error:
            version.fail(
                serving_error(error, f"cannot prepare to load {version.id.slashed}")
            )
            self.end_load(version)
            return False
        return True

    def _pause_or_end(self, version: Version) -> None:
        """Lets a load pause whose attempt failed, or ends it."""
        if version.is_over:
            self.end_load(version)
            return
        with self._lock:
            if version.retry_at_s is not None:  # it was not cancelled meanwhile
                self._paused[version] = None
        self._on_change(version.id.name)

    def _make_available(self, version: Version) -> None:
        try:
            servable = version.servable
        except Exception as error:
            abandon_load(
                version, serving_error(error, f"{version.id.slashed} has no servable")
            )
            self.end_load(version)
            return
        if version.reserved is not None:
            too_large = self.admission.correct(version, estimate_again(version))
            if too_large is not None:
                abandon_load(version, too_large)
                self.end_load(version)
                return
        yield_to_requests()
        handle = ServableHandle(version.id, servable)
        self._table.make_available(version, handle, self.serving_map)
        # This comes only now, because the manager must not unload another version for
        # one that cannot be requested yet.
        version.transition(HarnessState.READY)
        self.admission.end(version)
        log.info(
            "event=loaded servable=%s reason=%r", version.id.slashed, version.reason
        )
        self._on_change(version.id.name)

    # -- unloads -----------------------------------------------------------------------

    def _withdraw(self, version: Version) -> None:
        """Takes a version out of service, and destroys it once nothing pins it."""
        handle = version.handle
        assert handle is not None
        version.transition(HarnessState.QUIESCING)
        self._table.publish(version, ManagerState.UNLOADING)
        name = version.id.name
        if retire(self.serving_map, handle, lambda: self._on_change(name)):
            self._destroy(version)
            return
        log.info(
            "event=waiting_for_pins servable=%s num_pins=%d",
            version.id.slashed,
            handle.num_pins,
        )
        with self._lock:
            self._quiescing[version] = (
                self._clock.now() + _FIRST_RECHECK_S,
                _FIRST_RECHECK_S,
            )
        self._on_change(name)

    def _destroy(self, version: Version) -> None:
        """Destroys a version that nothing pins, as soon as a thread is free."""
        version.transition(HarnessState.QUIESCED)
        try:
            self._unload_pool.submit(
                lambda: self._free(version),
                self._patience_s,
                partial(self._wait_no_longer, version),
            )
        except RuntimeError:
            self._free(version)  # the pool is closed, so no other thread will

    def _free(self, version: Version) -> None:
        """Frees a version. On the unload pool."""
        if version.handle is not None:
            version.handle.drop()
        unload(version)
        if self._releaser is not None:
            self._releaser.owe()
            self._releaser.release_owed()
        yield_to_requests()
        self.admission.release(version)
        self.admission.end(version)
        log.info(
            "event=unloaded servable=%s reason=%r", version.id.slashed, version.reason
        )
        self._table.publish(version, ManagerState.END)
        self._on_change(version.id.name)
