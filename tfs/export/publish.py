"""Publishes a version, a new one or an edited one: its number, files beside it, producer."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import torch

from tfs.core.errors import FailedPrecondition, InvalidArgument
from tfs.core.signature import ExampleSlot, Signature
from tfs.core.version.input_statistics import STATISTICS, describe, to_json
from tfs.core.version.manifest import Producer
from tfs.core.version.version_layout import RUN_PLATFORMS
from tfs.core.version_directory import (
    BATCHING_PARAMETERS,
    commit,
    new_version,
    payload_files,
    read_manifest,
)
from tfs.export.checking.export_check import check_version
from tfs.export.packaging.packaging import Packaging
from tfs.export.signatures.signature import Derived
from tfs.export.values import view_of


def write_beside(
    folder: str, assets: str | os.PathLike[str] | None, packaging: Packaging
) -> None:
    """Writes into a version that is being filled what may stand beside any payload.

    Raises:
        InvalidArgument: The assets are no folder.

    """
    if assets is not None:
        if not os.path.isdir(assets):
            raise InvalidArgument(f"assets must be a folder: {assets}")
        shutil.copytree(assets, os.path.join(folder, "assets"))
    if packaging.batching_parameters is not None:
        text = packaging.batching_parameters
        Path(folder, BATCHING_PARAMETERS).write_text(text, encoding="utf-8")
    if packaging.statistics:
        found = {
            name: describe(np.asarray(values).ravel().tolist())
            for name, values in packaging.statistics.items()
        }
        Path(folder, STATISTICS).write_text(to_json(found), encoding="utf-8")


def publish(base_path: str, version: int | None, fill: Callable[[str], object]) -> str:
    """Makes a version, filled by ``fill``, appear at once; returns its directory.

    Args:
        base_path: The model's directory; created if absent.
        version: The number; None takes the next free one, and the one after that if
            somebody else takes it meanwhile.
        fill: Fills the folder that it gets; writes the manifest last.

    Raises:
        FailedPrecondition: The version exists already. It was not touched.

    """
    number = next_version(base_path) if version is None else version
    while True:
        try:
            with new_version(base_path, number) as folder:
                fill(folder)
        except FailedPrecondition:
            final = os.path.join(base_path, str(number))
            if version is not None or not os.path.lexists(final):
                raise
            number = max(number + 1, next_version(base_path))
        else:
            return os.path.join(base_path, str(number))


def next_version(base_path: str) -> int:
    """Returns one more than the highest numbered entry of ``base_path``, at least 1."""
    try:
        names = os.listdir(base_path)
    except FileNotFoundError:
        return 1
    return max((int(n) for n in names if n.isascii() and n.isdigit()), default=0) + 1


def producer() -> Producer:
    """Returns the producer of versions: the versions of TFS and torch, and the time."""
    try:
        own = importlib.metadata.version("tfs")
    except importlib.metadata.PackageNotFoundError:
        own = ""
    now = dt.datetime.now(dt.UTC)
    return Producer(own, str(torch.__version__), now.isoformat(timespec="seconds"))


_ALIGNMENT_BYTES: Final = 64
"""Alignment of tensors in the file: a mapped example can be used as a tensor of any
type."""


def place_examples(
    derived: Mapping[str, Derived],
) -> tuple[dict[str, Signature], bytes]:
    """Returns the signatures with the places of their examples, and the file's bytes."""
    signatures = {}
    blob = bytearray()
    for key, each in derived.items():
        slots = {}
        for name, value in each.example.items():
            view = view_of(value)
            if isinstance(view.data, tuple):
                slots[name] = ExampleSlot(view.shape, 0, view.data)
                continue
            blob += bytes(-len(blob) % _ALIGNMENT_BYTES)
            slots[name] = ExampleSlot(view.shape, len(blob))
            blob += view.data
        signatures[key] = replace(each.signature, examples=slots)
    return signatures, bytes(blob)


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
        if manifest.platform in RUN_PLATFORMS:
            check_version(target, manifest.platform)

    return publish(os.fspath(base_path), version, fill)
