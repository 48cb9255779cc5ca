"""Estimates how much memory a model takes before it was ever loaded.

It is the bytes of its newest version's files and a little for the code around them,
counted twice if one version is loaded before the other is unloaded. Once a job has the
model, its measurement replaces the estimate
(:func:`tfs.hosted.fleet_edits.learn`).
"""

from __future__ import annotations

import os
from typing import Final

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
        versions = [int(each) for each in os.listdir(base_path) if each.isdecimal()]
    except OSError as error:
        raise FailedPrecondition(
            f"{base_path} cannot be looked at from here ({error.strerror}); say what one "
            "replica takes (--memory)"
        ) from error
    if not versions:
        raise FailedPrecondition(
            f"{base_path} holds no version yet; say what one replica takes (--memory)"
        )
    path = os.path.join(base_path, str(max(versions)))
    try:
        size = sum(each.size_bytes for each in read_manifest(path).files.values())
    except ServingError:  # a directory without a manifest
        size = sum(
            os.path.getsize(os.path.join(path, each)) for each in payload_files(path)
        )
    return size + PER_VERSION_BYTES
