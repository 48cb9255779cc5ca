"""Script functions of models in the server's process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

# Whoever switches compiling off does so for the whole process.
PROGRAM = """
import torch
from tfs.runtime.inline.inline_interpreter import run_script_functions_as_python

def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x

run_script_functions_as_python()
assert torch.jit.script(doubled) is doubled
print(doubled(torch.ones(1)).item())
"""


def test_a_decorated_function_runs_as_python() -> None:
    """torch would keep it for ever, and another one for each version."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.stdout, done.returncode) == ("2.0\n", 0), done.stderr
