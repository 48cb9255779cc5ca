"""CPU of a process tree, on scripted /proc trees and on a real one."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.benchmarks.process_cpu import ProcessTreeCpu

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Process:
    """A line of /proc/PID/stat, as far as it matters here; times in ticks."""

    parent: int
    own: int = 0
    waited: int = 0
    start: int = 7


Processes = dict[int, Process]


class FakeProc:
    """A /proc with stat files only, written by tests."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "self").mkdir()

    def show(self, processes: Processes) -> None:
        """Has exactly these processes from now on."""
        for stat in self.path.glob("*/stat"):
            stat.unlink()
            stat.parent.rmdir()
        for pid, each in processes.items():
            fields = ["S", str(each.parent), *["0"] * 9]
            fields += [str(each.own), "0", str(each.waited), "0"]
            fields += ["0"] * 4 + [str(each.start), "0"]
            folder = self.path / str(pid)
            folder.mkdir()
            (folder / "stat").write_text(f"{pid} (a) b) {' '.join(fields)}\n")


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


HISTORIES: dict[str, list[tuple[Processes, int]]] = {
    "a tree is the process, its children and theirs": [
        (
            {
                10: Process(1, own=5),
                11: Process(10, own=7),
                12: Process(11, own=1),
                20: Process(1, own=1000),
            },
            13,
        ),
    ],
    "the time of a child that was waited for moves into its parent's": [
        ({10: Process(1, own=5), 11: Process(10, own=7)}, 12),
        ({10: Process(1, own=5, waited=9)}, 14),
        ({10: Process(1, own=5, waited=9)}, 14),
    ],
    "a child never seen alive shows in its parent's time": [
        ({10: Process(1, own=5)}, 5),
        ({10: Process(1, own=5, waited=30)}, 35),
    ],
    "a child that nobody waited for keeps its last time": [
        ({10: Process(1, own=5), 11: Process(10, own=7)}, 12),
        ({10: Process(1, own=5)}, 12),
        ({10: Process(1, own=6)}, 13),
    ],
    "what the parent's time grew by was handed up, the rest is lost": [
        ({10: Process(1), 11: Process(10, own=7), 12: Process(10, own=100)}, 107),
        ({10: Process(1, waited=100)}, 107),
    ],
    "time handed up twice between two readings is at the living ancestor": [
        ({10: Process(1), 11: Process(10, own=2), 12: Process(11, own=3)}, 5),
        ({10: Process(1, waited=6)}, 6),
    ],
    "an orphan that was adopted stays in the tree": [
        ({10: Process(1), 11: Process(10, own=2), 12: Process(11, own=3)}, 5),
        ({10: Process(1, waited=2), 12: Process(1, own=8)}, 10),
    ],
    "another process under a member's pid is a stranger": [
        ({10: Process(1), 11: Process(10, own=7)}, 7),
        ({10: Process(1), 11: Process(1, own=5000, start=99)}, 7),
    ],
    "the end of the root is survived": [
        ({10: Process(1, own=4)}, 4),
        ({}, 4),
        ({}, 4),
    ],
}


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
def test_every_tick_of_the_tree_counts_once(
    proc: FakeProc, history: list[tuple[Processes, int]]
) -> None:
    """Nothing is lost or doubled, and the sum never falls, whoever ends meanwhile."""
    cpu = ProcessTreeCpu(10, proc.path)
    for processes, expected in history:
        proc.show(processes)
        assert round(cpu.read_s() * TICKS_PER_S) == expected


BURNER = """
import os, sys, time
def burn(seconds):
    while time.process_time() < seconds:
        pass
child = os.fork()
if child == 0:
    burn(0.1)
    os._exit(0)
os.waitpid(child, 0)
print("burnt", flush=True)
sys.stdin.read()
"""


def test_a_real_childs_time_is_found_after_it_ended() -> None:
    """On a real kernel, a child's 0.1 s show in its parent's tree."""
    with subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", BURNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"burnt\n"
        used_s = ProcessTreeCpu(process.pid).read_s()
        process.stdin.close()
        process.wait(20)
    assert used_s >= 0.08
