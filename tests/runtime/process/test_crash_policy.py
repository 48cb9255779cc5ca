from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tfs.runtime.guest.worker_options import LOST_DEVICE, OUT_OF_MEMORY
from tfs.runtime.process.crash_policy import (
    CrashHistory,
    CrashPolicy,
    KernelCount,
    describe_status,
    num_memory_kills,
)


@pytest.mark.parametrize(
    ("times_s", "now_s", "too_many", "delay_s"),
    [
        ((), 0.0, False, 0.0),
        ((0.0,), 0.0, False, 0.0),
        ((0.0, 1.0), 1.0, False, 0.0),
        ((0.0, 1.0, 2.0), 2.0, True, 0.1),
        ((0.0, 1.0, 2.0, 3.0), 3.0, True, 0.2),
        (tuple(range(10)), 10.0, True, 5.0),
        ((0.0, 1.0, 2.0), 60.5, False, 0.0),  # the first has left the window
        ((0.0, 1.0, 2.0), 1000.0, False, 0.0),
    ],
)
def test_crashes_within_the_window_count(
    times_s: tuple[float, ...], now_s: float, too_many: bool, delay_s: float
) -> None:
    """The first deaths are repaired at once, more after a pause; old ones are forgotten."""
    history = CrashHistory(CrashPolicy(max_crashes=3, window_s=60.0, max_delay_s=5.0))
    for time_s in times_s:
        history.add(time_s)
    assert history.is_too_many(now_s) is too_many
    assert history.respawn_delay_s(now_s) == pytest.approx(delay_s)


@pytest.mark.parametrize(
    "wrong", [{"max_crashes": 0}, {"window_s": 0.0}, {"max_delay_s": -1.0}]
)
def test_a_policy_that_means_nothing_is_refused(wrong: dict[str, float]) -> None:
    """Options are checked when they are made."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CrashPolicy(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (None, "ended"),
        (0, "exited with status 0"),
        (3 << 8, "exited with status 3"),
        (int(signal.SIGSEGV), "SIGSEGV"),
        (int(signal.SIGSEGV) | 0x80, "SIGSEGV"),  # with a core dump
        (int(signal.SIGKILL), "SIGKILL"),
        (int(signal.SIGALRM), "was ended by SIGALRM"),
        (40, "signal 40"),
        (OUT_OF_MEMORY << 8, "--worker_memory_limit_bytes"),
        (LOST_DEVICE << 8, "a kernel of its model failed"),
    ],
)
def test_the_way_a_process_ended_is_said_in_words(
    status: int | None, text: str
) -> None:
    """Callers read the signal's name and what it tends to mean."""
    assert text in describe_status(status)


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
