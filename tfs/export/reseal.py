"""``reseal``: makes a new version of one that was edited by hand."""

from __future__ import annotations

import os
import shutil

from tfs.core.version_directory import commit, payload_files, read_manifest
from tfs.export.publish import producer, publish
from tfs.export.trial.trial import tried
from tfs.runtime.guest.model_source import PLATFORMS


def reseal(
    folder: str | os.PathLike[str],
    base_path: str | os.PathLike[str],
    version: int | None = None,
) -> str:
    """Publishes the edited files of a version directory as a new version.

    It is for packages that were unzipped, edited and zipped again, and for changed
    tables and assets: the digests of the old manifest no longer fit, but its signatures
    still do. The new version is loaded in a process of its own, and called on its
    examples, before it appears.
    Blocks.

    Args:
        folder: A version directory with its manifest; it stays as it is.
        base_path: The model's directory; created if absent.
        version: The new number; None takes the next free one.

    Returns:
        The new version's directory.

    Raises:
        NotFound: The folder has no manifest.
        InvalidArgument: The edited version does not load or run. Nothing was written.
        FailedPrecondition: The version exists already. It was not touched.

    """
    place = os.fspath(folder)
    manifest = read_manifest(place)

    def fill(target: str) -> None:
        for name in payload_files(place):
            copy = os.path.join(target, name)
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            shutil.copyfile(os.path.join(place, name), copy)
        commit(
            target, manifest.platform, manifest.signatures, manifest.entry, producer()
        )
        if manifest.platform in PLATFORMS:
            tried(target, manifest.platform)

    return publish(os.fspath(base_path), version, fill)
