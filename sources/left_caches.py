"""Removes the caches that servers left behind which were killed.

A server without a configured cache directory makes one in the system's directory for
temporary files and removes it when it ends. One that is killed cannot, and its copies
would fill the disk for ever. Its lock tells that it is gone: the system lets go of a
lock with the process that holds it.

Rejected: to name directories after processes, whose numbers are used again.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import stat
from typing import Final

from sources.version_cache import LOCK

log = logging.getLogger(__name__)

# A cache that is being opened has its lock file a moment before its lock.
_LEAST_AGE_S: Final = 60.0


def left_caches(parent: str, prefix: str) -> list[str]:
    """Returns directories that may be such caches: ours, by name and by owner. Blocks."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        named = [entry for entry in entries if entry.name.startswith(prefix)]
        return sorted(entry.path for entry in named if _is_our_folder(entry))
    return []


def _is_our_folder(entry: os.DirEntry[str]) -> bool:
    with contextlib.suppress(OSError):  # it may be gone by now
        return (
            entry.is_dir(follow_symlinks=False)
            and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
        )
    return False


def remove_left_cache(root: str, now_s: float) -> bool:
    """Removes a cache if no process holds it; returns whether it did. Blocks.

    Args:
        root: Its directory.
        now_s: Seconds since the epoch.

    """
    try:
        lock = os.open(os.path.join(root, LOCK), os.O_RDWR | os.O_NOFOLLOW)
    except OSError:  # none, or not a cache
        return False
    try:
        status = os.fstat(lock)
        if not stat.S_ISREG(status.st_mode) or now_s - status.st_mtime < _LEAST_AGE_S:
            return False
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(root, ignore_errors=True)
    except OSError:  # somebody holds it
        return False
    finally:
        os.close(lock)
    log.info("event=left_copies_removed path=%s", root)
    return True
