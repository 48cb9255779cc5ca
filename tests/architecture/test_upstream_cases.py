"""Every case of TensorFlow Serving's lifecycle tests is kept, or differs on purpose."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.tree import ROOT

CASES = ROOT / "tests" / "data" / "upstream_lifecycle_cases.txt"
FOLDERS = ("core", "managers", "sources", "server", "servables", "handlers")


def cases() -> list[str]:
    """Returns the names, each once."""
    lines = CASES.read_text().splitlines()
    return sorted({line.strip() for line in lines if line.startswith("    ")})


def texts() -> Iterator[str]:
    """Yields what tests say: docstrings, and the ids of tables."""
    for folder in FOLDERS:
        for path in (ROOT / "tests" / folder).rglob("test_*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


@pytest.fixture(scope="module")
def known() -> str:
    """Everything that may name a case: tests, and the page of divergences."""
    divergences = (ROOT / "docs" / "divergences.md").read_text()
    return "\n".join((*texts(), divergences))


@pytest.mark.parametrize("case", cases())
def test_case_has_a_test_or_a_line(case: str, known: str) -> None:
    """A case that nobody names is a behaviour that nobody decided about."""
    assert case in known
