"""Script functions of models in the server's process."""

from __future__ import annotations

from tests.python_program import output_of

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
    assert output_of("-c", PROGRAM) == "2.0\n"
