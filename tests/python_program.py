"""Python programs of tests: with imports, outputs and an end of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]


def run_python(
    *arguments: str, cwd: Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python to its end, with this tree's modules and further variables."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def output_of(*arguments: str, cwd: Path = ROOT) -> str:
    """Returns what Python printed; fails with its errors if it did not succeed."""
    done = run_python(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout
