"""Versions behind URLs, copied to a directory of this machine before they are loaded."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable
from typing import Final

from managers.state_monitor import ServableStateMonitor
from sources.fetched_stream import Service
from sources.fetching_adapter import FetchingSourceAdapter, Schedule
from sources.remote_storage import RemoteFileSystem
from sources.storage_threads import StorageThreads
from sources.version_cache import VersionCache, VersionCacheOptions
from tfs.core.clock import Clock
from tfs.core.errors import Code
from tfs.core.servable_state import ManagerState, ServableState
from tfs.server.options import ServerOptions

# Large versions take long to copy; what a hung store holds up others of it for.
_COPY_PATIENCE_S: Final = 60.0


class RemoteCopies:
    """Owns the copies, unless a directory is configured for them. Thread-safe.

    Args:
        options: The server's.
        storage: Runs the copying.
        monitor: Knows what became of versions.
        clock: For pauses between tries.
        schedule: Runs a function at a time, by the clock.

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
            # A name nobody can guess; the cache makes it with the first URL, so that a
            # server without one leaves nothing behind, however it ends.
            name = f"tfs-cache-{uuid.uuid4().hex}"
            root = self._own = os.path.join(tempfile.gettempdir(), name)
        self._files = RemoteFileSystem()
        cache = VersionCache(
            VersionCacheOptions(root, options.remote_cache_max_bytes or None),
            self._files,
        )
        self.adapter = FetchingSourceAdapter(
            cache,
            self._run,
            clock,
            schedule=schedule,
            service=lambda each: service_of(monitor.state(each)),
        )

    def close(self) -> None:
        """Removes the copies, if nobody asked for a place to keep them. Idempotent."""
        if self._own:
            shutil.rmtree(self._own, ignore_errors=True)

    def _run(self, url: str, copy: Callable[[], None]) -> None:
        # Beside the looks at that store, which wait for no copy.
        place = f"{self._files.place(url)} copies"
        self._storage.submit(place, copy, _COPY_PATIENCE_S)


def service_of(state: ServableState | None) -> Service:
    """Returns what became of a version, by the state it was in last; None is none."""
    if state is None:
        return Service.NONE
    if state.manager_state is not ManagerState.END:
        return Service.GOES_ON
    if state.error is None:
        return Service.SERVED
    # One that did not fit is loaded when there is room.
    is_refused = state.error.code is Code.RESOURCE_EXHAUSTED
    return Service.GOES_ON if is_refused else Service.NONE
