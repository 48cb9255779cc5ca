"""What is preloaded into a server of private Pythons."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import os
from tfs.cli.serving.preloads import start_without_preloads
start_without_preloads()
print(os.getpid(), os.environ.get("LD_PRELOAD"))
"""


def test_a_preloaded_library_is_left_out_by_the_same_process() -> None:
    """Whoever supervises the server sees no other process, and the log says it."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={**os.environ, "LD_PRELOAD": "libm.so.6"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        out, told = program.communicate(timeout=60)
        assert out.split() == [str(program.pid), "None"]
    assert "event=preloads_left_out libraries=libm.so.6" in told
