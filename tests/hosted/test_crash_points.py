"""A controller that is killed anywhere comes to the same end when it is started again."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosted.crash_scenario import KeptServers, work_through

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory: a kill loses nothing that was written, and sixty disks are slow."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


def test_a_kill_at_every_step_changes_nothing_of_the_end(folder: Path) -> None:
    """SIGKILL before and after each commit; the requests are repeated, and acted on once."""
    whole = folder / "whole"
    whole.mkdir()
    end, num_steps = work_through(whole)
    assert num_steps >= 40
    assert set(end.fleet.jobs) == {"b:1"}
    assert end.fleet.packing() == {"m": ("b:1",)}
    # Odd steps are before a commit, and every second of the others is behind one.
    steps = [f"{each}" for each in range(1, num_steps + 1) if each % 4 != 0]
    command = (sys.executable, "-m", "tests.hosted.crash_scenario", str(folder))
    assert subprocess.run([*command, *steps], cwd=ROOT, check=False).returncode == 0
    for step in steps:
        again, _ = work_through(folder / step)
        assert again.fleet == end.fleet, step
        found = KeptServers(folder / step / "servers.json").configs
        assert found == KeptServers(whole / "servers.json").configs
