"""Every thread has a name, and a line that says what it does."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture.tree import ROOT, tracked_files

_ROOMS = ("tfs", "sources", "managers", "batching")


def _makers() -> Iterator[tuple[str, ast.Call]]:
    """Yields the calls that make a thread or a pool of them, and where they are."""
    for path in tracked_files("*.py"):
        text = (ROOT / path).read_text(encoding="utf-8")
        if path.parts[0] not in _ROOMS or "Thread" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and _called(node) in _PLACES:
                yield f"{path}:{node.lineno}", node


def _called(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


_PLACES = {"Thread": 2, "ThreadExecutor": 1}
"""Which argument is the name, where it is not given by its own."""


def _name_of(call: ast.Call) -> str | None:
    """Returns the name as it begins; "" if a variable has it, None without any."""
    index = _PLACES[_called(call)]
    given = [each.value for each in call.keywords if each.arg == "name"]
    given += call.args[index : index + 1]
    if not given:
        return None
    name = given[0]
    first = name.values[0] if isinstance(name, ast.JoinedStr) else name
    return str(first.value).strip("-") if isinstance(first, ast.Constant) else ""


def test_every_thread_has_a_name() -> None:
    """Who looks at a stack, or at what the kernel counts, wants to know whose it is."""
    assert [place for place, call in _makers() if _name_of(call) is None] == []


def test_every_thread_has_a_line_in_the_code_map() -> None:
    """A thread that nobody can look up is one that nobody owns."""
    page = (ROOT / "docs/code-map.md").read_text(encoding="utf-8")
    table = page.partition("## Threads")[2].partition("\n## ")[0]
    names = {name for _, call in _makers() if (name := _name_of(call))}
    assert "manager" in table
    assert {"source", "decode", "config"} <= names
    assert sorted(name for name in names if name not in table) == []
