from __future__ import annotations

from pathlib import Path

from tfs.runtime.process.crash_policy import (
    KernelCount,
    num_memory_kills,
    num_refused_processes,
)


def test_the_kernels_count_is_read(tmp_path: Path) -> None:
    """The kernel counts whom it ended for memory; a system without the count has none."""
    stats = tmp_path / "vmstat"
    stats.write_text("nr_free_pages 5\noom_kill 12\noom_kill_other 9\n")
    assert num_memory_kills(str(stats)) == 12
    stats.write_text("nr_free_pages 5\n")
    assert num_memory_kills(str(stats)) == 0
    assert num_memory_kills(str(tmp_path / "absent")) == 0


def test_only_what_came_since_the_last_look_counts() -> None:
    """What the kernel ended before this server, or before the last look, is another story."""
    counts = iter([7, 7, 9, 9])
    kills = KernelCount(lambda: next(counts))
    assert [kills.is_more() for _ in range(3)] == [False, True, False]


def test_what_control_groups_refused_is_added_up(tmp_path: Path) -> None:
    """The limit that was met may be that of a group above."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text("8:pids:/pod/container\n")
    pod = tmp_path / "groups" / "pids" / "pod"
    (pod / "container").mkdir(parents=True)
    assert num_refused_processes(tmp_path / "proc", tmp_path / "groups") == 0
    (pod / "pids.events").write_text("max 2\n")
    (pod / "container" / "pids.events").write_text("max 3\n")
    assert num_refused_processes(tmp_path / "proc", tmp_path / "groups") == 5
