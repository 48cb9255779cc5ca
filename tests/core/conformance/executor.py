"""What every :class:`tfs.core.executor.Executor` promises."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import pytest

from tfs.core.executor import Executor
from tfs.testing.patience import PATIENCE_S

MakeExecutor = Callable[[], Executor]
ExecutorCheck = Callable[[MakeExecutor], None]


def _deadline_s() -> float:
    return time.monotonic() + PATIENCE_S


def every_function_runs_exactly_once(make: MakeExecutor) -> None:
    """What is submitted runs, and runs once."""
    executor = make()
    ran: list[int] = []
    for index in range(50):
        executor.submit(lambda index=index: ran.append(index))  # type: ignore[misc]
    assert executor.close(_deadline_s())
    assert sorted(ran) == list(range(50))


def functions_start_in_the_order_submitted(make: MakeExecutor) -> None:
    """With as many threads as there are, the starts keep their order."""
    executor = make()
    lock = threading.Lock()
    started: list[int] = []

    def start(index: int) -> None:
        with lock:
            started.append(index)

    num = executor.num_threads
    for index in range(20):
        executor.submit(lambda index=index: start(index))  # type: ignore[misc]
    assert executor.close(_deadline_s())
    # Threads may overtake each other between taking and starting a function: by at
    # most the number of threads.
    assert all(abs(place - index) < num + 1 for place, index in enumerate(started))


def a_function_that_raises_is_logged_and_hurts_nobody(make: MakeExecutor) -> None:
    """An exception ends its function, not the executor, and not the caller."""
    executor = make()
    ran = threading.Event()

    def fail() -> None:
        raise ValueError("meant to fail")

    logger = logging.getLogger("tfs.core.executor")
    was_disabled, logger.disabled = logger.disabled, True
    try:
        executor.submit(fail)
        executor.submit(ran.set)
        assert executor.close(_deadline_s())
    finally:
        logger.disabled = was_disabled
    assert ran.is_set()


def a_closed_executor_takes_nothing(make: MakeExecutor) -> None:
    """After close a submission is refused loudly; closing again is harmless."""
    executor = make()
    assert executor.close(_deadline_s())
    ran = threading.Event()
    with pytest.raises(RuntimeError):
        executor.submit(ran.set)
    assert executor.close(_deadline_s())
    assert not ran.is_set()


EXECUTOR_CHECKS: tuple[ExecutorCheck, ...] = (
    every_function_runs_exactly_once,
    functions_start_in_the_order_submitted,
    a_function_that_raises_is_logged_and_hurts_nobody,
    a_closed_executor_takes_nothing,
)


def check_executor(make: MakeExecutor) -> None:
    """Runs every check of an executor."""
    for check in EXECUTOR_CHECKS:
        check(make)
