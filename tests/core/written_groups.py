"""Control groups of a process, as files that a test has written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def written_groups(
    root: Path, lines: str, files: Mapping[str, str]
) -> tuple[Path, Path]:
    """Writes which groups a process is in, and files of theirs, by name.

    Returns what stands for ``/proc``, and for the place where groups are mounted.
    """
    proc, groups = root / "proc", root / "groups"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(f"{lines}\n")
    for name, text in files.items():
        path = groups / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return proc, groups
