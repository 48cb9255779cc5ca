"""Versions behind URLs, copied to a directory of this machine before they are loaded."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from typing import Final

from managers.state_monitor import ServableStateMonitor
from sources.remote.adapter import FetchingSourceAdapter, Schedule
from sources.remote.cache import VersionCache, VersionCacheOptions, remove_left_caches
from sources.remote.storage import RemoteFileSystem
from sources.storage.storage_threads import StorageThreads
from tfs.core.clock import Clock
from tfs.core.errors import Code
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState
from tfs.server.options import ServerOptions

# Copying a large version takes long. If a store hangs, other work for the same store
# waits for so long before it gets a thread of its own.
_COPY_PATIENCE_S: Final = 60.0
_PREFIX: Final = "tfs-cache-"


class RemoteCopies:
    """Owns the copies, unless a directory is configured for them. Thread-safe.

    Args:
        options: The options of the server.
        storage: Runs the copying.
        monitor: Knows which versions are in use.
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
        self._monitor = monitor
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
            self._cache, self._run, clock, schedule=schedule, is_used=self._is_used
        )

    def start(self) -> None:
        """Has the copies removed that servers left behind which were killed."""
        remove = functools.partial(
            remove_left_caches, tempfile.gettempdir(), _PREFIX, time.time()
        )
        self._storage.submit("left copies", remove, _COPY_PATIENCE_S)

    def close(self) -> None:
        """Gives up the directory, and removes it if it was not configured. Idempotent."""
        self._cache.close()
        if self._own:
            shutil.rmtree(self._own, ignore_errors=True)

    def _is_used(self, servable_id: ServableId) -> bool:
        """Whether a version loads, serves, unloads, or waits for memory to load in."""
        state = self._monitor.state(servable_id)
        if state is None or state.manager_state is not ManagerState.END:
            return state is not None
        error = state.error
        return error is not None and error.code is Code.RESOURCE_EXHAUSTED

    def _run(self, url: str, copy: Callable[[], None]) -> None:
        # A queue of its own, so that listing the same store never waits for a copy.
        place = f"{self._files.place(url)} copies"
        self._storage.submit(place, copy, _COPY_PATIENCE_S)
