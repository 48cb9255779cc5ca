"""Removes the directories of sockets that servers left behind which were killed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import stat
from pathlib import Path
from typing import Final

PREFIX: Final = "tfs-"
_NAME: Final = re.compile(re.escape(PREFIX) + r"[a-z0-9_]{8}")  # as mkdtemp makes them
_SOCKET: Final = re.compile(r"\d+")
# A socket that is bound and does not listen yet refuses clients, too.
_LEAST_AGE_S: Final = 60.0


def remove_left_folders(parent: str, now_s: float) -> list[str]:
    """Removes directories that hold only sockets at which nobody listens.

    They belong to this user, have a name that a server gives, and are older than a
    server takes to start. Blocks, but not for any socket.

    Args:
        parent: Where servers make them.
        now_s: Seconds since the epoch.

    Returns:
        The directories that were removed.

    """
    removed = []
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name) is None:
                continue
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                if (
                    stat.S_ISDIR(status.st_mode)
                    and status.st_uid == os.geteuid()
                    and now_s - status.st_mtime >= _LEAST_AGE_S
                    and _is_left(Path(entry.path))
                ):
                    shutil.rmtree(entry.path, ignore_errors=True)
                    removed.append(entry.path)
    return removed


def _is_left(folder: Path) -> bool:
    sockets = list(folder.iterdir())
    return bool(sockets) and all(
        _SOCKET.fullmatch(each.name) is not None
        and stat.S_ISSOCK(each.lstat().st_mode)
        and _refuses(str(each))
        for each in sockets
    )


def _refuses(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        try:
            client.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:  # its queue is full, for example
            return False
    return False
