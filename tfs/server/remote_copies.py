"""Versions behind URLs, copied to a directory of this machine before they are loaded."""

from __future__ import annotations

import functools
import logging
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Final

from managers.state_monitor import ServableStateMonitor
from sources.fetched_stream import Service
from sources.fetching_adapter import FetchingSourceAdapter, Schedule
from sources.left_caches import left_caches, remove_left_cache
from sources.remote_storage import RemoteFileSystem
from sources.storage_threads import StorageThreads
from sources.version_cache import VersionCache, VersionCacheOptions
from tfs.core.clock import Clock
from tfs.core.errors import Code
from tfs.core.event_bus import EventAndTime
from tfs.core.servable_state import ManagerState, ServableState
from tfs.server.options import ServerOptions

log = logging.getLogger(__name__)

# Copying a large version takes long. If a store hangs, other work for the same store
# waits for so long before it gets a thread of its own.
_COPY_PATIENCE_S: Final = 60.0
_PREFIX: Final = "tfs-cache-"


class RemoteCopies:
    """Owns the copies, unless a directory is configured for them. Thread-safe.

    Args:
        options: The options of the server.
        storage: Runs the copying.
        monitor: Knows what became of versions.
        clock: For pauses between tries.
        schedule: Runs a function at a given time, by the clock.

    Attributes:
        adapter: Makes versions behind URLs local.

    """

    def __init__(
        self,
        options: ServerOptions,
        storage: StorageThreads,
        monitor: ServableStateMonitor,
        clock: Clock,
        schedule: Schedule,
    ) -> None:
        self._storage = storage
        self._own = ""
        root = options.remote_cache_dir
        if not root:
            # A name that nobody can guess. The cache makes the directory with the first
            # URL, so that a server without URLs leaves nothing behind, however it ends.
            name = f"{_PREFIX}{uuid.uuid4().hex}"
            root = self._own = os.path.join(tempfile.gettempdir(), name)
        self._files = RemoteFileSystem()
        self._cache = VersionCache(
            VersionCacheOptions(root, options.remote_cache_max_bytes or None),
            self._files,
        )
        self.adapter = FetchingSourceAdapter(
            self._cache,
            self._run,
            clock,
            schedule=schedule,
            service=lambda each: service_of(monitor.state(each)),
        )
        self._stop_listening = monitor.listen(self._note_state)

    def start(self) -> None:
        """Has the copies removed that servers left behind which were killed."""
        left = left_caches(tempfile.gettempdir(), _PREFIX)
        if left:
            self._storage.submit(
                "left copies", functools.partial(_remove_left, left), _COPY_PATIENCE_S
            )

    def close(self) -> None:
        """Gives up the directory, and removes it if it was not configured. Idempotent."""
        self._stop_listening()
        self._cache.close()
        if self._own:
            shutil.rmtree(self._own, ignore_errors=True)

    def _note_state(self, event: EventAndTime[ServableState]) -> None:
        """Has the copy of a failed version checked; quick, as listeners must be."""
        if not may_be_damaged(event.event):
            return
        check = functools.partial(self.adapter.check_copy, event.event.id)
        try:
            self._storage.submit("damaged copies", check, _COPY_PATIENCE_S)
        except RuntimeError:  # the server is shutting down
            log.debug("event=copy_not_checked servable=%s", event.event.id.slashed)

    def _run(self, url: str, copy: Callable[[], None]) -> None:
        # A queue of its own, so that listing the same store never waits for a copy.
        place = f"{self._files.place(url)} copies"
        self._storage.submit(place, copy, _COPY_PATIENCE_S)


def _remove_left(roots: Sequence[str]) -> None:
    for root in roots:
        remove_left_cache(root, time.time())


def service_of(state: ServableState | None) -> Service:
    """Returns what became of a version, from its last state; None if it has no state."""
    if state is None:
        return Service.NONE
    if state.manager_state is not ManagerState.END:
        return Service.GOES_ON
    if state.error is None:
        return Service.SERVED
    # A version that did not fit into memory is loaded when there is room.
    is_refused = state.error.code is Code.RESOURCE_EXHAUSTED
    return Service.GOES_ON if is_refused else Service.NONE


def may_be_damaged(state: ServableState) -> bool:
    """Returns whether damaged files could be the reason why a version failed.

    That includes new contents whose old ones still answer. It excludes a version in
    quarantine, because that was loaded from its files.
    """
    if state.error is None or state.error.code in (
        Code.RESOURCE_EXHAUSTED,
        Code.CANCELLED,
    ):
        return False
    is_over = state.manager_state is ManagerState.END
    return is_over or state.error.code is not Code.FAILED_PRECONDITION
