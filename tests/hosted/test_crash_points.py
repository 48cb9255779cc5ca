"""A controller that is killed anywhere comes to the same end when it is started again."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.hosted.crash_scenario import KeptServers, work_through

ROOT = Path(__file__).parents[2]


def test_a_kill_at_every_step_changes_nothing_of_the_end(tmp_path: Path) -> None:
    """SIGKILL before and after each commit; the requests are repeated, and acted on once."""
    whole = tmp_path / "whole"
    whole.mkdir()
    end, num_steps = work_through(whole)
    assert num_steps >= 40
    assert set(end.fleet.jobs) == {"b"}
    assert end.fleet.placement == {"m": ("b",)}
    killed = []
    # Odd steps are before a commit, and every second of the others is behind one.
    steps = [each for each in range(1, num_steps + 1) if each % 4 != 0]
    for step in steps:
        folder = tmp_path / f"{step}"
        folder.mkdir()
        command = (sys.executable, "-m", "tests.hosted.crash_scenario")
        killed.append(
            (folder, subprocess.Popen([*command, str(folder), f"{step}"], cwd=ROOT))
        )
        if step % 4 == 3 or step == steps[-1]:
            for _, process in killed[-3:]:
                assert process.wait() == -signal.SIGKILL
    for folder, _ in killed:
        again, _ = work_through(folder)
        assert again.fleet == end.fleet, folder.name
        found = KeptServers(folder / "servers.json").configs
        assert found == KeptServers(whole / "servers.json").configs
