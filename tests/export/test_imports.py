"""What a program pays for that imports tfs.export."""

from __future__ import annotations

from tests.python_program import output_of


def test_importing_the_exporter_brings_no_algebra_system() -> None:
    """torch imports sympy for those who export graphs: half a second for all others."""
    script = "import sys, torch\nbefore = set(sys.modules)\nimport tfs.export\n"
    script += "print('sympy' in set(sys.modules) - before)\n"
    assert output_of("-c", script).strip() == "False"
