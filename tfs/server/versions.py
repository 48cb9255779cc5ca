"""Versions of what serves, for ``--version`` and the manifest."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib import metadata


def version_lines() -> Sequence[str]:
    """Returns one line for TFS and one for each library that matters."""
    names = ("torch", "grpcio", "protobuf")
    return [
        f"TFS {_version('tfs')} (Python {platform.python_version()})",
        *(f"{name} {_version(name)}" for name in names),
    ]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
