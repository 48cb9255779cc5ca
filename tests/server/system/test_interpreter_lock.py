"""A server's loop does not wait long for threads that compute in Python."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tfs.server.system.interpreter_lock import SWITCH_INTERVAL_S


def test_a_server_hands_the_lock_over_sooner_than_python_does() -> None:
    """The interval is in force before the server opens a port or loads anything."""
    script = (
        "import sys\n"
        "from tfs.server import process\n"
        "def start(*args): print(sys.getswitchinterval()); raise SystemExit\n"
        "process.ModelServer.start = start\n"
        "from tfs.cli.main import main\n"
        "main(['serve', '--any_port', '--model_base_path=/nowhere'])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=200
    )
    assert result.stdout, result.stderr
    assert float(result.stdout) == pytest.approx(SWITCH_INTERVAL_S, abs=1e-6)
