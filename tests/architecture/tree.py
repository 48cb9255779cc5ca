"""The committed files, as the architecture tests see them."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def tracked_files(pattern: str = "*") -> list[Path]:
    """Returns the files git tracks that match `pattern`, relative to the root.

    Untracked files are somebody's work in progress and follow no rule yet; tracked
    ones that are deleted in the work tree are left out too.
    """
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--", pattern],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=200,
    ).stdout
    paths = (Path(name) for name in listing.split("\0") if name)
    return [path for path in paths if (ROOT / path).is_file()]


def is_generated(path: Path) -> bool:
    """Tells whether protoc wrote the file."""
    return path.stem.endswith(("_pb2", "_pb2_grpc"))
