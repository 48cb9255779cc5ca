"""CPU of a process tree, on scripted /proc trees and on a real one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.process_cpu import ProcessTreeCpu, parse_stat

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class FakeProc:
    """A /proc with stat files only, written by tests."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "self").mkdir()

    def put(
        self, pid: int, parent: int, *, own: int = 0, waited: int = 0, start: int = 7
    ) -> None:
        """Adds or replaces a process; times in ticks."""
        fields = ["S", str(parent), *["0"] * 9, str(own), "0", str(waited), "0"]
        fields += ["0"] * 4 + [str(start), "0"]
        (self.path / str(pid)).mkdir(exist_ok=True)
        (self.path / str(pid) / "stat").write_text(f"{pid} (a) b) {' '.join(fields)}\n")

    def end(self, pid: int) -> None:
        (self.path / str(pid) / "stat").unlink()
        (self.path / str(pid)).rmdir()


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def read_ticks(cpu: ProcessTreeCpu) -> int:
    return round(cpu.read_s() * TICKS_PER_S)


def test_a_name_with_blanks_and_brackets_is_parsed() -> None:
    """Whatever a process calls itself, its numbers are found."""
    tail = "S 5 " + "0 " * 9 + "11 12 13 14 " + "0 " * 4 + "99 0"
    times = parse_stat(f"42 (x) y (z) {tail}")
    assert (times.pid, times.parent_pid, times.start) == (42, 5, 99)
    assert (times.own, times.waited) == (23, 27)


def test_all_descendants_count_and_nobody_else(proc: FakeProc) -> None:
    """A tree is the process, its children and theirs."""
    proc.put(10, 1, own=5)
    proc.put(11, 10, own=7)
    proc.put(12, 11, own=1)
    proc.put(20, 1, own=1000)
    assert read_ticks(ProcessTreeCpu(10, proc.path)) == 13


def test_a_child_that_was_waited_for_counts_once(proc: FakeProc) -> None:
    """Its time moves into its parent's, the sum does not jump."""
    cpu = ProcessTreeCpu(10, proc.path)
    proc.put(10, 1, own=5)
    proc.put(11, 10, own=7)
    assert read_ticks(cpu) == 12
    proc.end(11)
    proc.put(10, 1, own=5, waited=9)
    assert read_ticks(cpu) == 14
    assert read_ticks(cpu) == 14


def test_a_child_between_two_readings_counts_when_waited_for(proc: FakeProc) -> None:
    """A child never seen alive still shows in its parent's time."""
    cpu = ProcessTreeCpu(10, proc.path)
    proc.put(10, 1, own=5)
    assert read_ticks(cpu) == 5
    proc.put(10, 1, own=5, waited=30)
    assert read_ticks(cpu) == 35


def test_a_child_nobody_waited_for_keeps_its_last_time(proc: FakeProc) -> None:
    """The sum never decreases, also where the kernel drops an ended child's time."""
    cpu = ProcessTreeCpu(10, proc.path)
    proc.put(10, 1, own=5)
    proc.put(11, 10, own=7)
    assert read_ticks(cpu) == 12
    proc.end(11)
    assert read_ticks(cpu) == 12
    proc.put(10, 1, own=6)
    assert read_ticks(cpu) == 13


def test_of_two_ended_children_only_the_lost_one_is_added(proc: FakeProc) -> None:
    """What the parent's time grew by was handed up; the rest was lost."""
    cpu = ProcessTreeCpu(10, proc.path)
    proc.put(10, 1)
    proc.put(11, 10, own=7)
    proc.put(12, 10, own=100)
    assert read_ticks(cpu) == 107
    proc.end(11)
    proc.end(12)
    proc.put(10, 1, waited=100)
    assert read_ticks(cpu) == 107


def test_a_grandchild_that_ended_with_its_parent_counts_once(proc: FakeProc) -> None:
    """Time handed up twice between two readings arrives at the living ancestor."""
    cpu = ProcessTreeCpu(10, proc.path)
    proc.put(10, 1)
    proc.put(11, 10, own=2)
    proc.put(12, 11, own=3)
    assert read_ticks(cpu) == 5
    proc.end(12)
    proc.end(11)
    proc.put(10, 1, waited=6)
    assert read_ticks(cpu) == 6


def test_an_adopted_orphan_stays_in_the_tree(proc: FakeProc) -> None:
    """A worker that outlives the one that started it is still the server's."""
    cpu = ProcessTreeCpu(10, proc.path)
    proc.put(10, 1)
    proc.put(11, 10, own=2)
    proc.put(12, 11, own=3)
    assert read_ticks(cpu) == 5
    proc.end(11)
    proc.put(10, 1, waited=2)
    proc.put(12, 1, own=8)
    assert read_ticks(cpu) == 10


def test_a_reused_pid_is_a_stranger(proc: FakeProc) -> None:
    """Another process under a member's pid adds nothing."""
    cpu = ProcessTreeCpu(10, proc.path)
    proc.put(10, 1)
    proc.put(11, 10, own=7)
    assert read_ticks(cpu) == 7
    proc.put(11, 1, own=5000, start=99)
    assert read_ticks(cpu) == 7


def test_the_end_of_the_root_is_survived(proc: FakeProc) -> None:
    """After the last member ended, the total stays readable."""
    cpu = ProcessTreeCpu(10, proc.path)
    proc.put(10, 1, own=4)
    assert read_ticks(cpu) == 4
    proc.end(10)
    assert read_ticks(cpu) == 4
    assert read_ticks(cpu) == 4


def test_an_unknown_root_is_an_error(proc: FakeProc) -> None:
    """Measuring nothing would look like a very fast server."""
    with pytest.raises(ProcessLookupError, match="no process 10"):
        ProcessTreeCpu(10, proc.path).read_s()


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
