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
        if "://" in base_path:
            sizes = _sizes_in_store(base_path)
        else:
            names = [each for each in os.listdir(base_path) if each.isdecimal()]
            newest = max(names, key=int, default=None)
            sizes = {newest: size_of(os.path.join(base_path, newest))} if newest else {}
    except Exception as error:  # drivers of stores have errors of their own
        raise FailedPrecondition(
            f"{base_path} cannot be looked at from here ({error}); say what one replica "
            "takes (--memory)"
        ) from error
    if not sizes:
        raise FailedPrecondition(
            f"{base_path} holds no version yet; say what one replica takes (--memory)"
        )
    return sizes[max(sizes, key=int)] + PER_VERSION_BYTES


def versions_in(base_path: str) -> Sequence[int] | None:
    """Returns the versions in a base path; None if it cannot be seen from here."""
    try:
        return sorted(name_versions(os.listdir(base_path)))
    except OSError:
        return None


def _sizes_in_store(base_path: str) -> dict[str, int]:
    """Returns the bytes of each version behind a URL."""
    import fsspec

    file_system, root = fsspec.core.url_to_fs(base_path)
    sizes: dict[str, int] = {}
    for path, entry in file_system.find(root, detail=True).items():
        version = path[len(root.rstrip("/")) + 1 :].partition("/")[0]
        if version.isdecimal():
            sizes[version] = sizes.get(version, 0) + int(entry["size"])
    return sizes


def size_of(path: str) -> int:
    """Returns the bytes of a version's files."""
    try:
        return sum(each.size_bytes for each in read_manifest(path).files.values())
    except ServingError:  # a directory without a manifest
        return sum(
            os.path.getsize(os.path.join(path, each)) for each in payload_files(path)
        )
