"""Deadlines expire in order, on time, and cost one timer."""

from __future__ import annotations

import random

import pytest

from tfs.core.loop.serving_loop import ServingLoop
from tfs.frontends.deadlines import Deadlines
from tfs.testing.fake_clock import FakeClock


class Rig:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.loop = ServingLoop(self.clock)
        self.expired: list[tuple[str, float]] = []
        self.deadlines: Deadlines[str] = Deadlines(
            self.loop, lambda name: self.expired.append((name, self.clock.now()))
        )

    def add(self, name: str, in_s: float) -> dict[str, None]:
        now_s = self.clock.now()
        return self.deadlines.add(name, now_s + in_s, now_s)

    def advance(self, duration_s: float) -> None:
        self.clock.advance(duration_s)
        self.loop.step()


def test_an_entry_expires_within_a_tick_after_its_deadline() -> None:
    """A call is never ended before its deadline, and at most a tick after it."""
    rig = Rig()
    rig.add("a", 0.1)
    rig.advance(0.0999)
    assert rig.expired == []
    rig.advance(0.0052)
    assert [name for name, _ in rig.expired] == ["a"]
    assert len(rig.deadlines) == 0


def test_a_removed_entry_does_not_expire() -> None:
    """Removing is deleting from the bucket."""
    rig = Rig()
    bucket = rig.add("a", 0.1)
    rig.add("b", 0.1)
    del bucket["a"]
    rig.advance(1)
    assert [name for name, _ in rig.expired] == ["b"]


def test_an_earlier_deadline_moves_the_timer() -> None:
    """The earliest deadline decides when to look, whichever was added first."""
    rig = Rig()
    rig.add("late", 10)
    rig.add("early", 0.5)
    rig.advance(0.51)
    assert [name for name, _ in rig.expired] == ["early"]
    rig.advance(10)
    assert [name for name, _ in rig.expired] == ["early", "late"]


def test_a_deadline_in_the_past_expires_in_the_next_round() -> None:
    """A grpc-timeout of zero ends its call in the next round."""
    rig = Rig()
    rig.add("a", 0.0)
    rig.advance(0.005)
    assert [name for name, _ in rig.expired] == ["a"]


@pytest.mark.parametrize("in_s", [1.0, 5.0, 6.0, 60.0, 3600.0, 86_400.0, 3.6e11])
def test_far_deadlines_are_late_by_a_fraction_at_most(in_s: float) -> None:
    """1/512 of their distance, so that hours do not need a bucket per 5 ms."""
    rig = Rig()
    begun_s = rig.clock.now()
    rig.add("a", in_s)
    rig.advance(in_s - 1e-3)
    assert rig.expired == []
    rig.advance(0.01 + in_s / 512)
    assert [name for name, _ in rig.expired] == ["a"]
    assert rig.clock.now() - begun_s > in_s


def test_a_steady_load_keeps_few_buckets() -> None:
    """An hour's deadlines, a thousand calls per second, each answered at once."""
    rig = Rig()
    for index in range(5000):
        bucket = rig.add(f"{index}", 3600.0)
        del bucket[f"{index}"]
        rig.clock.advance(0.001)
    assert len(rig.deadlines._ticks) < 20


def test_random_deadlines_expire_in_order() -> None:
    """Entries expire in the order of their deadlines, up to the rounding."""
    rng = random.Random(5)
    rig = Rig()
    due: dict[str, float] = {}
    for index in range(500):
        in_s = rng.random() * 4
        due[str(index)] = rig.clock.now() + in_s
        rig.add(str(index), in_s)
        rig.advance(0.001)
    for _ in range(1000):
        rig.advance(0.005)
    assert len(rig.expired) == 500
    for name, at_s in rig.expired:
        assert due[name] <= at_s <= due[name] + 0.0121


def test_the_same_deadline_again_expires_again() -> None:
    """A deadline can be used again after everything due at it is gone."""
    rig = Rig()
    due_s = rig.clock.now() + 0.1
    for name in ("a", "b"):
        rig.deadlines.add(name, due_s, rig.clock.now())
    rig.advance(0.2)
    rig.deadlines.add("c", due_s, rig.clock.now())
    rig.advance(0.01)
    assert [name for name, _ in rig.expired] == ["a", "b", "c"]


def test_closing_forgets_everything() -> None:
    """After closing, no entry expires any more."""
    rig = Rig()
    rig.add("a", 0.1)
    rig.deadlines.close()
    rig.advance(1)
    assert rig.expired == []
