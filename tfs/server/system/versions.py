"""The versions of TFS and its libraries, for ``--version`` and the manifest."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib import metadata


def version_lines() -> Sequence[str]:
    """Returns one line for TFS and one for each library that matters."""
    names = ("torch", "grpcio", "protobuf")
    return [
        f"TFS {distribution_version('tfs')} (Python {platform.python_version()})",
        *(f"{name} {distribution_version(name)}" for name in names),
    ]


def distribution_version(name: str) -> str:
    """Returns the version of a distribution; "not installed" if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
