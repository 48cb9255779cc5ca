"""A model that was loaded before its worker was forked, whose memory it shares."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tfs.runtime.guest.guest_model import GuestModel, VersionFiles, load_guest_model
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.platforms.platform_imports import imported_s


@dataclass(frozen=True, slots=True)
class PreloadedModel:
    """Immutable; each fork has its own.

    Attributes:
        source: The version that was loaded.
        files: The memfds it was loaded from, by inode.
        guest: The model.
        import_s: Processor seconds that this took, including the imports before it.
        fds: Descriptors that the model holds, which a fork must not close.

    """

    source: ModelSource
    files: tuple[int, ...]
    guest: GuestModel
    import_s: float
    fds: frozenset[int]

    @classmethod
    def load(
        cls, source: ModelSource, names: Sequence[str], fds: Sequence[int]
    ) -> PreloadedModel:
        """Loads a version from its memfds, which it closes. Blocks.

        Raises:
            ServingError: It does not load.

        """
        before = open_descriptors() - set(fds)
        begun_s = time.thread_time()
        inodes = _inodes(fds)
        files = VersionFiles.adopt(dict(zip(names, fds, strict=True)))
        try:
            guest = load_guest_model(source, files)
        finally:
            files.close()
        import_s = time.thread_time() - begun_s + imported_s(source.platform)
        held = open_descriptors() - before
        return cls(source, inodes, guest, import_s, frozenset(held))

    def is_of(self, source: ModelSource, fds: Sequence[int]) -> bool:
        """Whether this is what a load of ``source`` from these memfds would make."""
        return source == self.source and _inodes(fds) == self.files


def open_descriptors() -> set[int]:
    """Returns the numbers of all descriptors that this process has open."""
    listed = map(int, os.listdir("/proc/self/fd"))
    return {fd for fd in listed if _is_open(fd)}  # without the one used for listing


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _inodes(fds: Sequence[int]) -> tuple[int, ...]:
    return tuple(os.fstat(fd).st_ino for fd in fds)
