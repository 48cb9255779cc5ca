"""The fake clock moves when told, and wakes who is due."""

from __future__ import annotations

import threading

import pytest

from tfs.testing.fake_clock import FakeClock


def test_time_stands_still_until_it_is_advanced() -> None:
    """Both times move together, forwards only."""
    clock = FakeClock(now_s=5.0, wall_s=100.0)
    assert (clock.now(), clock.wall_s()) == (5.0, 100.0)
    clock.advance(2.5)
    assert (clock.now(), clock.wall_s()) == (7.5, 102.5)
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1)
    clock.set_wall(50.0)
    assert (clock.now(), clock.wall_s()) == (7.5, 50.0)


def test_advancing_wakes_those_whose_deadline_has_come() -> None:
    """A sleeper wakes at its deadline and not before."""
    clock = FakeClock()
    woken: list[str] = []
    changed = threading.Condition()

    def sleep(name: str, duration_s: float) -> None:
        deadline_s = clock.now() + duration_s
        with changed:
            while clock.now() < deadline_s:
                clock.wait(changed, deadline_s)
            woken.append(name)

    threads = [
        threading.Thread(target=sleep, args=("short", 1.0)),
        threading.Thread(target=sleep, args=("long", 2.0)),
    ]
    for thread in threads:
        thread.start()
    clock.block_until_sleepers(2)
    clock.advance(1.0)
    threads[0].join(20)
    assert woken == ["short"]
    clock.advance(1.0)
    threads[1].join(20)
    assert woken == ["short", "long"]
    assert clock.num_sleepers == 0
