"""Prints docs/modules.md from the modules: python -m tests.architecture.modules_page."""

from __future__ import annotations

import ast
from itertools import groupby
from pathlib import Path
from typing import Final

from tests.architecture.tree import ROOT, is_generated, tracked_files

PAGE: Final = ROOT / "docs" / "modules.md"

_PACKAGES: Final = ("tfs", "sources", "managers", "batching")

_HEAD = """\
# Every module

What each module says of itself in its first sentence, room by room; where to begin is in
[the architecture](../ARCHITECTURE.md), which one to open for a change in
[the code map](code-map.md). Generated messages (`tfs/proto`) are left out.

This page is printed by `python -m tests.architecture.modules_page`, or `make pages`.
"""


def page() -> str:
    """Returns docs/modules.md."""
    modules = sorted(
        (path for name in _PACKAGES for path in tracked_files(f"{name}/*.py")),
        key=lambda path: (path.parent.as_posix(), path.name),
    )
    described = [
        path
        for path in modules
        if not is_generated(path) and path.parts[:2] != ("tfs", "proto")
    ]
    rooms = groupby(described, key=lambda path: path.parent)
    return _HEAD + "".join(_room(room, list(paths)) for room, paths in rooms)


def _room(room: Path, paths: list[Path]) -> str:
    about = "".join(_sentence(each) for each in paths if each.name == "__init__.py")
    rows = "".join(
        f"| `{each.name}` | {_sentence(each)} |\n"
        for each in paths
        if each.name != "__init__.py"
    )
    table = f"\n| module | |\n|---|---|\n{rows}" if rows else ""
    return f"\n## {room.as_posix()}\n\n{about}\n{table}"


def _sentence(path: Path) -> str:
    """Returns the first paragraph of a module's docstring, in one line."""
    docstring = ast.get_docstring(ast.parse((ROOT / path).read_text("utf-8"))) or ""
    return " ".join(docstring.split("\n\n")[0].split()).replace("|", "&#124;")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
