from __future__ import annotations

from tfs.core.batch.queue_stats import QueueStats


def test_no_task_waits_for_less_than_no_time() -> None:
    """One that comes while the scheduler is at work comes after the look at the clock."""
    stats = QueueStats()
    stats.note_times(-5e-6, 1e-4, 0, 1)
    stats.note_times(2e-3, 1e-4, 0, 1)
    assert stats.wait().total == 2e-3
