"""managers.steps.driver."""

from __future__ import annotations

import threading

import pytest

from managers.steps.driver import Driver
from tfs.testing.fake_clock import FakeClock
from tfs.testing.patience import PATIENCE_S


class Steps:
    """Counts steps; answers each with a time from a list, then with None."""

    def __init__(self, *times_s: float | None) -> None:
        self._times_s = list(times_s)
        self.num = 0
        self.has_stepped = threading.Semaphore(0)

    def __call__(self) -> float | None:
        self.num += 1
        self.has_stepped.release()
        return self._times_s.pop(0) if self._times_s else None


def test_the_thread_steps_at_once_when_woken_and_when_it_asked_to() -> None:
    """Nothing is polled: between the three it sleeps."""
    clock = FakeClock()
    steps = Steps(None, clock.now() + 5.0)
    driver = Driver(steps, clock, "test")
    driver.start()
    assert steps.has_stepped.acquire(timeout=PATIENCE_S)
    clock.block_until_sleepers(1)
    driver.wake()
    assert steps.has_stepped.acquire(timeout=PATIENCE_S)
    clock.block_until_sleepers(1)
    assert steps.num == 2
    clock.advance(5.0)
    assert steps.has_stepped.acquire(timeout=PATIENCE_S)
    driver.close()
    assert steps.num == 3


def test_a_wake_up_during_a_step_causes_one_more() -> None:
    """What came in while it was looked at is looked at."""
    clock = FakeClock()
    driver: Driver
    num_steps = 0

    def step() -> None:
        nonlocal num_steps
        num_steps += 1
        if num_steps == 1:
            driver.wake()
            driver.wake()

    driver = Driver(step, clock, "test")
    driver.start()
    clock.block_until_sleepers(1)
    driver.close()
    assert num_steps == 2


def test_a_step_that_raises_is_tried_again_after_a_pause() -> None:
    """A bug costs a second, not the manager."""
    clock = FakeClock()
    steps = Steps()

    def step() -> float | None:
        steps()
        if steps.num == 1:
            raise RuntimeError("bug")
        return None

    driver = Driver(step, clock, "test")
    driver.start()
    assert steps.has_stepped.acquire(timeout=PATIENCE_S)
    clock.block_until_sleepers(1)
    clock.advance(1.0)
    assert steps.has_stepped.acquire(timeout=PATIENCE_S)
    driver.close()


def test_whoever_has_no_thread_steps_until_it_is_over() -> None:
    """It sleeps in between, until it is woken or the time comes that a step named."""
    clock = FakeClock()
    steps = Steps(None, clock.now() + 5.0)
    driver = Driver(steps, clock, "test")
    over: list[bool] = []
    thread = threading.Thread(
        target=lambda: over.append(driver.step_until(lambda: steps.num == 3))
    )
    thread.start()
    clock.block_until_sleepers(1)
    driver.wake()
    assert steps.has_stepped.acquire(timeout=PATIENCE_S)
    assert steps.has_stepped.acquire(timeout=PATIENCE_S)
    clock.block_until_sleepers(1)
    clock.advance(5.0)
    thread.join(PATIENCE_S)
    assert over == [True]


def test_stepping_ends_at_the_deadline() -> None:
    """What is not over by then goes on without the caller."""
    clock = FakeClock()
    driver = Driver(Steps(), clock, "test")
    over: list[bool] = []
    deadline_s = clock.now() + 2.0
    thread = threading.Thread(
        target=lambda: over.append(driver.step_until(lambda: False, deadline_s))
    )
    thread.start()
    clock.block_until_sleepers(1)
    clock.advance(2.0)
    thread.join(PATIENCE_S)
    assert over == [False]


def test_there_is_one_thread() -> None:
    """Starting twice, or after the end, is a mistake of the caller's."""
    driver = Driver(Steps(), FakeClock(), "test")
    driver.start()
    with pytest.raises(RuntimeError, match="was started already"):
        driver.start()
    driver.close()
    driver.close()
    with pytest.raises(RuntimeError, match="was started already"):
        driver.start()
