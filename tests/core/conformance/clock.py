"""What every :class:`tfs.core.clock.Clock` promises."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tfs.core.clock import Clock
from tfs.testing.patience import PATIENCE_S

MakeClock = Callable[[], Clock]
ClockCheck = Callable[[MakeClock], None]


def now_never_goes_back(make: MakeClock) -> None:
    """Readings in sequence do not fall."""
    clock = make()
    readings = [clock.now() for _ in range(100)]
    assert readings == sorted(readings)


def wall_time_is_seconds_since_the_epoch(make: MakeClock) -> None:
    """Wall time is later than this project and in seconds."""
    assert 1_600_000_000 < make().wall_s() < 10_000_000_000


def a_wait_until_a_past_deadline_returns_at_once(make: MakeClock) -> None:
    """A deadline that has come blocks nobody."""
    clock = make()
    condition = threading.Condition()
    with condition:
        clock.wait(condition, clock.now())
        clock.wait(condition, clock.now() - 1)


def a_notified_wait_returns(make: MakeClock) -> None:
    """A wait ends with a notification, with and without a deadline."""
    for with_deadline in (False, True):
        clock = make()
        condition = threading.Condition()
        awake = threading.Event()
        entered = threading.Event()

        def sleep(
            clock: Clock = clock,
            condition: threading.Condition = condition,
            awake: threading.Event = awake,
            entered: threading.Event = entered,
            with_deadline: bool = with_deadline,
        ) -> None:
            with condition:
                entered.set()
                clock.wait(condition, clock.now() + 3600 if with_deadline else None)
            awake.set()

        thread = threading.Thread(target=sleep, daemon=True)
        thread.start()
        assert entered.wait(PATIENCE_S)
        with condition:  # free only once the sleeper waits
            condition.notify_all()
        assert awake.wait(PATIENCE_S)
        thread.join(PATIENCE_S)


CLOCK_CHECKS: tuple[ClockCheck, ...] = (
    now_never_goes_back,
    wall_time_is_seconds_since_the_epoch,
    a_wait_until_a_past_deadline_returns_at_once,
    a_notified_wait_returns,
)


def check_clock(make: MakeClock) -> None:
    """Runs every check of a clock."""
    for check in CLOCK_CHECKS:
        check(make)
