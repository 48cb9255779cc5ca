"""A server that is process 1 reaps what models leave behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.runtime.process_host import until

ROOT = Path(__file__).resolve().parents[3]

# A subreaper is given orphans as process 1 of a container is, and needs no rights.
PROGRAM = """
import ctypes, os, signal, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
from tfs.cli.serving.serve import wait_for_child
code = wait_for_child()
if code is not None:
    sys.exit(code)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
subprocess.run(["sh", "-c", "sleep 0.01 & sleep 0.01 &"])
print(os.getpid(), flush=True)
while True:
    signal.pause()
"""


def test_orphans_are_reaped_and_signals_passed_on() -> None:
    """No zombie stays, SIGTERM reaches the server, and its exit status is told."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        server = int(program.stdout.readline())
        init = psutil.Process(program.pid)
        until(lambda: [each.pid for each in init.children()] == [server], "the reaping")
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 7


def test_a_server_that_is_killed_is_told_as_a_shell_does() -> None:
    """137 is SIGKILL, as whoever runs containers knows."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        psutil.Process(int(program.stdout.readline())).kill()
        assert program.wait(60) == 128 + signal.SIGKILL
