"""Replaces files so that readers find either the old content or all of the new."""

from __future__ import annotations

import contextlib
import os
import threading

from tfs.core.version_directory import TEMPORARY_PREFIX


def replace_file(
    path: str, text: str, *, is_durable: bool = False, old_path: str = ""
) -> None:
    """Replaces a file whole, or makes it, by a sibling that is renamed.

    Blocks on the disk. Of several writers, threads or processes, the last wins. The
    sibling's name begins with ``TEMPORARY_PREFIX``; only a crash leaves it behind.

    Args:
        path: The file, in a folder that exists.
        text: The whole content, written as UTF-8.
        is_durable: Whether the content, once seen, must survive a power failure; takes
            milliseconds.
        old_path: Where the present file is moved once the new one is written; ""
            replaces it.

    Raises:
        OSError: The file could not be written, and is as it was.

    """
    folder, name = os.path.split(path)
    writer = f"{os.getpid()}-{threading.get_ident()}"
    scratch = os.path.join(folder, f"{TEMPORARY_PREFIX}{writer}-{name}")
    try:
        with open(scratch, "w", encoding="utf-8") as file:
            file.write(text)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        if old_path:
            os.replace(path, old_path)
        os.replace(scratch, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(scratch)
        raise
