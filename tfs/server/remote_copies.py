"""Versions behind URLs, copied to a directory of this machine before they are loaded."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
from typing import Final

from sources.remote.cache import VersionCache, VersionCacheOptions, remove_left_caches
from sources.remote.storage import RemoteFileSystem
from tfs.server.options import ServerOptions

_PREFIX: Final = "tfs-cache-"


class RemoteCopies:
    """Owns the copies, unless a directory is configured for them. Thread-safe.

    Attributes:
        cache: Makes and holds the copies.

    """

    def __init__(self, options: ServerOptions) -> None:
        self._own = ""
        root = options.remote_cache_dir
        if not root:
            # A name that nobody can guess. The cache makes the directory with the first
            # URL, so that a server without URLs leaves nothing behind, however it ends.
            name = f"{_PREFIX}{uuid.uuid4().hex}"
            root = self._own = os.path.join(tempfile.gettempdir(), name)
        self.cache = VersionCache(
            VersionCacheOptions(root, options.remote_cache_max_bytes or None),
            RemoteFileSystem(),
        )

    def remove_left(self) -> None:
        """Removes the copies that servers left behind which were killed. Blocks."""
        remove_left_caches(tempfile.gettempdir(), _PREFIX, time.time())

    def close(self) -> None:
        """Gives up the directory, and removes it if it was not configured. Idempotent."""
        self.cache.close()
        if self._own:
            shutil.rmtree(self._own, ignore_errors=True)
