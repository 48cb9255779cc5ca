"""Estimates how much memory a model takes before it was ever loaded.

It is the bytes of its newest version's files and a little for the code around them,
counted twice if one version is loaded before the other is unloaded. Once a job has the
model, its measurement replaces the estimate
(:func:`tfs.hosted.edits.learn`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from sources.remote.storage import (
    AnyFileSystem,
    RemoteFileSystem,
    is_remote,
    local_path,
)
from sources.version_policy import name_versions
from tfs.core.errors import FailedPrecondition, ServingError
from tfs.core.version_directory import payload_files, read_manifest

PER_VERSION_BYTES: Final = 16 << 20
"""Modules, activations and queues of a version, as measured with small models."""


def newest_version_bytes(base_path: str) -> int:
    """Returns the estimated memory of the newest version below ``base_path``.

    Raises:
        FailedPrecondition: It cannot be read from here.

    """
    try:
        found = name_versions(AnyFileSystem().list_directories(base_path))
        if found:
            newest = f"{base_path.rstrip('/')}/{found[max(found)]}"
            return size_of(newest) + PER_VERSION_BYTES
    except OSError as error:
        raise FailedPrecondition(
            f"{base_path} cannot be looked at from here ({error}); say what one replica "
            "takes (--memory)"
        ) from error
    raise FailedPrecondition(
        f"{base_path} holds no version yet; say what one replica takes (--memory)"
    )


def versions_in(base_path: str) -> Sequence[int] | None:
    """Returns the versions in a base path; None if it cannot be seen from here."""
    try:
        return sorted(name_versions(os.listdir(base_path)))
    except OSError:
        return None


def size_of(path: str) -> int:
    """Returns the bytes of a version's files."""
    if is_remote(path):
        return sum(RemoteFileSystem().file_sizes(path).values())
    path = local_path(path)
    try:
        return sum(each.size_bytes for each in read_manifest(path).files.values())
    except ServingError:  # a directory without a manifest
        return sum(
            os.path.getsize(os.path.join(path, each)) for each in payload_files(path)
        )
