"""Copies a version's payload into memory; a large one is copied by a worker."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from tfs.runtime.guest import control_channel
from tfs.runtime.guest.machine_code import unpacked
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.sealed_file import SealedFile, new_memfd
from tfs.runtime.guest.sealed_file import copy as copy_here
from tfs.runtime.guest.version_files import VersionFiles, payload_paths, unreadable

SMALL_BYTES: Final = 1 << 20
"""Copying a payload of up to this size takes a quarter of the time of asking a worker to
do it."""


def copy_payload(
    source: ModelSource, copy: Callable[[tuple[int, ...]], None]
) -> VersionFiles:
    """Returns sealed copies of a version's files. Blocks.

    Args:
        source: The version.
        copy: Copies files given by descriptors: from, to, from, to, and so on. It
            returns when that is done, or raises. It is not called for a small payload.

    Raises:
        ServingError: The payload cannot be read, or ``copy`` says so. Nothing is left
            open.

    """
    opened: list[int] = []
    staged: dict[str, int] = {}
    try:
        try:
            for name, path in payload_paths(source).items():
                opened.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                staged[name] = new_memfd(name)
            pairs = list(zip(opened, staged.values(), strict=True))
            if sum(os.fstat(fd).st_size for fd in opened) <= SMALL_BYTES:
                for source_fd, target_fd in pairs:
                    copy_here(source_fd, target_fd)
            else:
                copy(tuple(fd for pair in pairs for fd in pair))
            files = {name: SealedFile.seal(fd) for name, fd in staged.items()}
            files.update(unpacked(files))
        except OSError as error:
            raise unreadable(source, error) from error
    except BaseException:
        control_channel.close_all(list(staged.values()))
        raise
    finally:
        control_channel.close_all(opened)
    return VersionFiles(files)
