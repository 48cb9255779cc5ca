from __future__ import annotations

from pathlib import Path

from tfs.runtime.process.memory_kills import MemoryKills, num_memory_kills


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
    kills = MemoryKills.from_now_on(lambda: next(counts))
    assert [kills.are_more() for _ in range(3)] == [False, True, False]
