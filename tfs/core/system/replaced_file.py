"""Replaces files so that readers find either the old content or all of the new."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from typing import Final

TEMPORARY_PREFIX: Final = ".tmp-"


def replace_file(
    path: str, content: str | bytes, *, is_durable: bool = False, old_path: str = ""
) -> None:
    """Replaces a file whole, or makes it, by a sibling that is renamed.

    Blocks on the disk. Of several writers, threads or processes, the last wins. The
    sibling's name begins with ``TEMPORARY_PREFIX``; only a crash leaves it behind.

    Args:
        path: The file, in a folder that exists.
        content: The whole content; text is written as UTF-8.
        is_durable: Whether the content must survive a power failure from the return on;
            takes milliseconds.
        old_path: Where the present file is moved once the new one is written; ""
            replaces it.

    Raises:
        OSError: The file could not be written, and is as it was.

    """
    folder, name = os.path.split(path)
    writer = f"{os.getpid()}-{threading.get_ident()}"
    scratch = os.path.join(folder, f"{TEMPORARY_PREFIX}{writer}-{name}")
    try:
        with open(scratch, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        if is_durable:
            sync(scratch)
        if old_path:
            os.replace(path, old_path)
        os.replace(scratch, path)
        if is_durable:
            sync(folder or ".")
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(scratch)
        raise


def sync(path: str) -> None:
    """Has a file, or the names in a folder, outlast a power failure; takes milliseconds.

    Where a file system (some of FUSE and NFS) knows no such thing for folders, it does
    nothing for them.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not os.path.isdir(path):
            raise
    finally:
        os.close(fd)
