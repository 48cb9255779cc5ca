"""The core's own clocks and executors keep what their protocols promise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.core.conformance import (
    CLOCK_CHECKS,
    EXECUTOR_CHECKS,
    ClockCheck,
    ExecutorCheck,
    check_name,
)
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.executor import Executor, InlineExecutor, ThreadExecutor
from tfs.testing.fake_clock import FakeClock


@pytest.mark.parametrize("make", [MonotonicClock, FakeClock])
@pytest.mark.parametrize("check", CLOCK_CHECKS, ids=check_name)
def test_clocks_keep_the_promises(check: ClockCheck, make: Callable[[], Clock]) -> None:
    """The machine's clock and the fake one are interchangeable."""
    check(make)


def one_thread() -> ThreadExecutor:
    return ThreadExecutor(1, "one")


def four_threads() -> ThreadExecutor:
    return ThreadExecutor(4, "four")


@pytest.mark.parametrize("make", [InlineExecutor, one_thread, four_threads])
@pytest.mark.parametrize("check", EXECUTOR_CHECKS, ids=check_name)
def test_executors_keep_the_promises(
    check: ExecutorCheck, make: Callable[[], Executor]
) -> None:
    """The caller itself, one thread and several are interchangeable."""
    check(make)
