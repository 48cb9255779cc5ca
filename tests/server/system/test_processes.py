"""tfs.server.system.processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tfs.server.system.processes import resident_bytes_of, tree_resident_bytes

HELD_BYTES = 64 << 20
NOBODY = (1 << 31) - 1
_HOLDS = f"""
import sys
held = b"x" * {HELD_BYTES}
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def child() -> Iterator[int]:
    """The number of a child process that holds much, until the test is over."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.communicate()


def test_a_tree_has_the_memory_of_its_children(child: int) -> None:
    """What models hold in processes of their own is the server's as well."""
    assert tree_resident_bytes(os.getpid()) > resident_bytes_of([child]) > HELD_BYTES


def test_processes_that_are_gone_hold_nothing() -> None:
    """They may end while the others are counted."""
    assert tree_resident_bytes(NOBODY) == 0
    assert resident_bytes_of([NOBODY, os.getpid()]) > 0
