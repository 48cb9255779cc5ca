"""What is logged: each line an event with its fields."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.architecture.tree import ROOT, tracked_files

LEVELS = ("debug", "info", "warning", "error", "exception", "log")
# A value stands in single quotes, or is a place for an argument, which the formatter of
# lines quotes if need be, or is one word. Stacks follow their line.
LINE = re.compile(
    r"event=[\w%]+( \w+=('[^']*'|(?:%[\w.]+[/+]?)+|[^\s'%]+))*( still_in:\n%s)?",
    re.ASCII,
)


def messages(path: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of every message that a module logs."""
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="log"), attr=level), args=args
            ) if level in LEVELS:
                for each in args[:2]:
                    if isinstance(each, ast.Constant) and isinstance(each.value, str):
                        yield node.lineno, each.value
                        break


def test_every_line_of_a_servers_log_can_be_taken_apart() -> None:
    """Operators search logs by event and key; exporters talk to authors, in sentences."""
    paths = [
        str(path)
        for home in ("tfs", "sources", "managers", "batching")
        for path in tracked_files(f"{home}/*.py")
        if not str(path).startswith("tfs/export/")
    ]
    found = [(path, *each) for path in paths for each in messages(path)]
    assert len(found) > 100
    assert [each for each in found if not LINE.fullmatch(each[2])] == []
