"""Whether the files of a local copy are still those that were copied.

Two checks: a quick one by size, for what a crash may have cut short, and one that reads
every byte, for a copy that failed to load. Neither changes anything.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sources.blob_store import size_of
from tfs.core.errors import DataLoss, InvalidArgument, ServingError
from tfs.core.manifest import MANIFEST, Manifest
from tfs.core.right_of_way import make_way
from tfs.core.version_directory import file_digest

UNVERIFIED: Final = "unverified-"
"""Prefix of the keys of copies without a manifest, whose files have no digests."""


@dataclass(frozen=True, slots=True)
class Damage:
    """What is wrong with a copy. Immutable.

    Attributes:
        why: The damage in words, for logs.
        blobs: Names of the blobs whose bytes have changed.

    """

    why: str
    blobs: Collection[str] = ()


def is_whole(path: Path, manifest_bytes: bytes) -> bool:
    """Whether a copy has this manifest, and every file has the size named in it."""
    try:
        if (path / MANIFEST).read_bytes() != manifest_bytes:
            return False
        manifest = Manifest.from_json(
            manifest_bytes.decode(errors="replace"), str(path)
        )
    except (OSError, InvalidArgument):
        return False
    return all(
        size_of(path / name) == entry.size_bytes
        for name, entry in manifest.files.items()
    )


def damage_of(path: Path, blob_names: Mapping[int, str]) -> Damage | None:
    """Reads all files of a copy and returns what is wrong with them; None if nothing.

    It gives way to requests between the files, and blocks for long.

    Args:
        path: The copy. Its name is the digest of its manifest, or begins with
            ``UNVERIFIED``.
        blob_names: The digest that each blob is named after, by inode.

    Raises:
        OSError: The files cannot be read, so nothing is known.

    """
    try:
        digests = _promised_digests(path)
        files = [each for each in path.rglob("*") if each.is_file()]
        here = {str(each.relative_to(path)) for each in files}
        if missing := digests.keys() - here:
            return Damage(f"{min(missing)} is gone")
        why, bad = "", []
        for file in files:
            name, blob = str(file.relative_to(path)), blob_names.get(file.stat().st_ino)
            promised = digests.get(name) or blob or ""
            make_way()
            if name != MANIFEST and file_digest(str(file)) != promised:
                why = why or f"{name} is another file"
                bad += [blob] if blob else []
    except (FileNotFoundError, ServingError) as error:
        return Damage(str(error))
    return Damage(why, bad) if why else None


def _promised_digests(path: Path) -> dict[str, str]:
    """Returns the digest of each file from the copy's manifest; empty without one.

    Raises:
        ServingError: The manifest is not the one that was copied.
        OSError: It cannot be read, or there is no copy.

    """
    if path.name.startswith(UNVERIFIED):
        os.listdir(path)
        return {}
    content = (path / MANIFEST).read_bytes()
    if hashlib.sha256(content).hexdigest() != path.name:
        raise DataLoss(f"{MANIFEST} is another file")
    files = Manifest.from_json(content.decode(), str(path)).files
    return {name: entry.sha256 for name, entry in files.items()}
