"""What a program pays for that imports tfs.export."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_importing_the_exporter_brings_no_algebra_system() -> None:
    """torch imports sympy for those who export graphs: half a second for all others."""
    script = "import sys, torch\nbefore = set(sys.modules)\nimport tfs.export\n"
    script += "print('sympy' in set(sys.modules) - before)\n"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert done.stdout.strip() == "False"
