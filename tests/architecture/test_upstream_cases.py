"""Every case of TensorFlow Serving's tests of our rooms is kept, or differs on purpose."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT

CASES = ROOT / "tests" / "data" / "upstream_cases.txt"


def cases() -> list[tuple[str, str, tuple[str, ...]]]:
    """Returns suite, case, and the files of ours that may name it."""
    found = []
    suite, files = "", tuple[str, ...]()
    for line in CASES.read_text().splitlines():
        if line.startswith("    "):
            found += [(suite, case, files) for case in line.split()]
        elif line and not line.startswith("#"):
            suite, _, listed = line.partition(" in ")
            files = tuple(listed.split())
    return found


@functools.cache
def said(path: Path) -> str:
    """Returns what a file of tests says of its cases: docstrings, and keys of tables."""
    return "\n".join(_texts(ast.parse(path.read_text())))


def _texts(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            # As it is written, but for where its lines end.
            yield " ".join((ast.get_docstring(node) or "").split())
        elif isinstance(node, ast.Dict):
            for key in node.keys:
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value


def is_named(case: str, text: str) -> bool:
    """Whether a text has the case as words of its own: Load is not LoadError."""
    return bool(re.search(rf"(?<!\w){re.escape(case)}(?!\w)", text))


@pytest.mark.parametrize(
    ("suite", "case", "files"), cases(), ids=[f"{s}-{c}" for s, c, _ in cases()]
)
def test_case_has_a_test_or_a_line(suite: str, case: str, files: Sequence[str]) -> None:
    """A case that nobody names is a behaviour that nobody decided about."""
    texts = [said(ROOT / "tests" / each) for each in files]
    texts.append((ROOT / "docs" / "divergences.md").read_text())
    assert any(is_named(case, text) for text in texts), f"{suite}: {case}"


def test_a_case_is_no_part_of_another() -> None:
    """A generic name would be found everywhere, and the check would check nothing."""
    assert is_named("Load", "LoadError, Load: the attempt")
    assert not is_named("Load", "LoadError, UnloadRequested and load")
    assert is_named("UpdateX", "(UpdateX)")
