"""tests.benchmarks.command."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.benchmarks.command import run_command


def test_what_a_command_printed_is_returned(tmp_path: Path) -> None:
    """It runs where it is told to."""
    script = "import os; print(os.getcwd())"
    assert run_command([sys.executable, "-c", script], tmp_path) == f"{tmp_path}\n"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            [sys.executable, "-c", "import sys; sys.exit('a\\nthe reason')"],
            "the reason",
        ),
        ([sys.executable, "-c", "raise SystemExit(3)"], "no reason given"),
        (["/no/such/program"], "No such file"),
    ],
)
def test_a_command_that_fails_says_why(command: list[str], words: str) -> None:
    """Its last words are in the error."""
    with pytest.raises(RuntimeError, match=words):
        run_command(command)
