"""The files of a version that its interpreters share. Does not use torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from tfs.core.errors import FailedPrecondition, ServingError
from tfs.core.version_directory import read_failure
from tfs.runtime.guest.machine_code import unpacked
from tfs.runtime.guest.model_source import ModelSource
from tfs.runtime.guest.sealed_file import SealedFile

PAYLOAD: Final[Mapping[str, tuple[str, ...]]] = {
    "torch_package": ("model.pt",),
    "torch_export": ("model.pt2",),
    "torchscript": ("model.pt",),
    "python": ("servable.py", "weights.safetensors", "weights.pt"),
}
"""Files of a version that are held in memory, by platform; those that a version lacks
are left out."""


class VersionFiles:
    """A version's payload in memory, shared by all interpreters. Thread-safe."""

    def __init__(self, files: Mapping[str, SealedFile]) -> None:
        self.files = dict(files)

    @classmethod
    def stage(cls, source: ModelSource) -> VersionFiles:
        """Reads the payload from the version directory into memory. Blocks.

        Raises:
            ServingError: A file is missing or cannot be read; nothing is left.

        """
        staged = cls({})
        try:
            for name, path in payload_paths(source).items():
                staged.files[name] = SealedFile.copy_of(path)
            staged.files.update(unpacked(staged.files))
        except OSError as error:
            staged.close()
            raise unreadable(source, error) from error
        return staged

    @classmethod
    def adopt(cls, fds: Mapping[str, int]) -> VersionFiles:
        """Takes over the descriptors of files that are in memory already, by name."""
        return cls({name: SealedFile.adopt(fd) for name, fd in fds.items()})

    def __getitem__(self, name: str) -> SealedFile:
        return self.files[name]

    @property
    def fds(self) -> tuple[int, ...]:
        """The descriptors, in the order of ``files``."""
        return tuple(file.fd for file in self.files.values())

    def duplicate(self) -> VersionFiles:
        """Returns the same bytes with descriptors of their own."""
        return VersionFiles(
            {name: file.duplicate() for name, file in self.files.items()}
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of the payload in memory."""
        return sum(file.size_bytes for file in self.files.values())

    def close(self) -> None:
        """Gives up the descriptors; mappings stay. Idempotent."""
        for file in self.files.values():
            file.close()


def payload_paths(source: ModelSource) -> dict[str, str]:
    """Returns the paths of the payload files the version has, by name.

    Raises:
        FailedPrecondition: It has none of those its platform needs.

    """
    names = PAYLOAD[source.platform]
    paths = {name: os.path.join(source.path, name) for name in names}
    there = {name: path for name, path in paths.items() if os.path.exists(path)}
    if not there:
        raise FailedPrecondition(
            f"{source.id.slashed}: a {source.platform} version needs "
            f"{' or '.join(names)}"
        )
    return there


def unreadable(source: ModelSource, error: OSError) -> ServingError:
    """Returns the error for a payload that cannot be read into memory."""
    return read_failure(error, f"{source.id.slashed}: cannot read its payload")
