"""Batching as a library."""

from __future__ import annotations

import doctest
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import batching
from batching import BatchDriver, BatchQueueOptions, SchedulerOptions, WindowOptions
from batching.batching_options import QueuePolicy
from batching.driver import DrivenQueue
from tests.batching.gate import Gate
from tests.threads import run_together
from tfs.core.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    Unavailable,
)
from tfs.testing.fake_clock import FakeClock
from tfs.testing.patience import PATIENCE_S


def squares(numbers: Sequence[int]) -> list[int]:
    return [number * number for number in numbers]


def as_they_came(items: Sequence[Any]) -> Sequence[Any]:
    return items


def test_the_example_in_the_package_works() -> None:
    """What the docstring shows is what happens."""
    assert doctest.testmod(batching).failed == 0
    assert doctest.testmod(batching).attempted > 0


def test_the_example_in_the_readme_works(capsys: pytest.CaptureFixture[str]) -> None:
    """It runs as it stands, in ten lines of code, and prints what it says."""
    page = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (source,) = (
        block.partition("```")[0]
        for block in page.split("```python\n")[1:]
        if "from batching import" in block
    )
    exec(compile(source, "README.md", "exec"), {})
    assert capsys.readouterr().out == "[0, 1, 4, 9]\n"
    assert len([line for line in source.splitlines() if line]) <= 10


def test_the_example_in_the_documentation_works() -> None:
    """What docs/batching.md shows as library use runs as it stands there."""
    page = Path(__file__).parents[2] / "docs/batching.md"
    result = doctest.testfile(str(page), module_relative=False)
    assert (result.failed, result.attempted > 0) == (0, True)


def test_items_that_wait_together_are_computed_together() -> None:
    """While one batch is computed the next one grows."""
    gate = Gate(as_they_came)
    with BatchDriver() as driver:
        queue = driver.add_queue(gate, BatchQueueOptions(max_batch_rows=8))
        futures = [queue.submit(0)]
        assert gate.entered.wait(PATIENCE_S)
        futures += [queue.submit(number) for number in range(1, 6)]
        gate.open.set()
        assert [future.result(PATIENCE_S) for future in futures] == list(range(6))
    assert gate.sizes == [1, 5]


def test_many_threads_get_their_own_results() -> None:
    """Submitting is safe from anywhere."""
    results: dict[int, list[int]] = {}
    with BatchDriver(SchedulerOptions(num_batch_threads=2, serial=False)) as driver:
        queue = driver.add_queue(squares, BatchQueueOptions(max_rows=10_000))

        def call(first: int) -> None:
            results[first] = [
                queue.submit(first + index).result(PATIENCE_S) for index in range(50)
            ]

        run_together(*(partial(call, n * 100) for n in range(8)))
    assert results == {n * 100: squares(range(n * 100, n * 100 + 50)) for n in range(8)}


def test_failures_reach_their_callers() -> None:
    """An exception among the results fails its item; a raise fails the batch."""

    def choosy(items: Sequence[str]) -> list[Any]:
        if "raise" in items:
            raise ValueError("raised")
        return [InvalidArgument(item) if item == "bad" else item for item in items]

    with BatchDriver() as driver:
        queue = driver.add_queue(choosy)
        assert queue.submit("good").result(PATIENCE_S) == "good"
        with pytest.raises(InvalidArgument):
            queue.submit("bad").result(PATIENCE_S)
        with pytest.raises(Internal, match="raised"):
            queue.submit("raise").result(PATIENCE_S)


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [(None, "returned a NoneType"), ([1, 2], "returned 2 results for 1 items")],
)
def test_function_that_returns_no_result_per_item_fails_its_items(
    returned: Any, complaint: str
) -> None:
    """Nobody waits for ever for what a function forgot to return."""
    with BatchDriver() as driver:
        queue: DrivenQueue[int, int] = driver.add_queue(
            lambda _: returned, BatchQueueOptions(name="mine")
        )
        with pytest.raises(Internal, match=f"mine: the function {complaint}"):
            queue.submit(1).result(PATIENCE_S)


def test_results_may_come_one_by_one_and_a_function_may_exit() -> None:
    """Generators are results too; sys.exit in a function ends no thread of the driver."""

    def choosy(items: Sequence[int]) -> Iterator[int]:
        if 0 in items:
            sys.exit("enough")
        return (item + 1 for item in items)

    with BatchDriver() as driver:
        queue = driver.add_queue(choosy)
        with pytest.raises(Internal, match="SystemExit"):
            queue.submit(0).result(PATIENCE_S)
        assert queue.submit(1).result(PATIENCE_S) == 2


def test_an_item_is_not_computed_after_its_timeout() -> None:
    """It fails when its time is up, by the driver's clock."""
    clock = FakeClock()
    gate = Gate(as_they_came)
    with BatchDriver(clock=clock) as driver:
        queue = driver.add_queue(gate, BatchQueueOptions(max_batch_rows=4))
        first = queue.submit("first")
        assert gate.entered.wait(PATIENCE_S)
        second = queue.submit("second", timeout_s=1.0)
        clock.advance(2.0)
        gate.open.set()
        assert first.result(PATIENCE_S) == "first"
        with pytest.raises(DeadlineExceeded):
            second.result(PATIENCE_S)
    assert gate.sizes == [1]


def test_what_was_begun_in_time_is_answered_though_late() -> None:
    """A timeout is about the wait: nothing interrupts a function, and it did the work."""
    clock = FakeClock()
    gate = Gate(as_they_came)
    with BatchDriver(clock=clock) as driver:
        queue = driver.add_queue(gate)
        future = queue.submit("item", timeout_s=1.0)
        assert gate.entered.wait(PATIENCE_S)
        clock.advance(2.0)
        gate.open.set()
        assert future.result(PATIENCE_S) == "item"


def test_a_cancelled_future_is_not_computed() -> None:
    """Cancelling takes the item out of the queue."""
    gate = Gate(as_they_came)
    with BatchDriver() as driver:
        queue = driver.add_queue(gate)
        first = queue.submit("first")
        assert gate.entered.wait(PATIENCE_S)
        second, third = queue.submit("second"), queue.submit("third")
        assert second.cancel()
        gate.open.set()
        assert (first.result(PATIENCE_S), third.result(PATIENCE_S)) == (
            "first",
            "third",
        )
    assert gate.sizes == [1, 1]


def test_closing_computes_what_waits() -> None:
    """The last batches run; later items are refused; closing twice is harmless.

    streaming_batch_scheduler_test: FinalUnderfullBatchProcessedUponDeletion.
    """
    driver = BatchDriver().start()
    queue = driver.add_queue(squares, BatchQueueOptions(timeout_s=3600.0))
    future = queue.submit(3)
    assert driver.close()
    assert future.result(0) == 9
    late: Future[int] = queue.submit(4)
    with pytest.raises(Unavailable):
        late.result(0)
    assert driver.close()


def test_closing_does_not_wait_for_ever() -> None:
    """When the time is up what waits fails; what is computed is let go."""
    clock = FakeClock()
    gate = Gate(as_they_came)
    driver = BatchDriver(clock=clock).start()
    queue = driver.add_queue(gate, BatchQueueOptions(max_batch_rows=1))
    first = queue.submit("first")
    assert gate.entered.wait(PATIENCE_S)
    second = queue.submit("second")
    result: list[bool] = []
    closer = threading.Thread(target=lambda: result.append(driver.close(5.0)))
    closer.start()
    clock.block_until_sleepers(1)
    clock.advance(5.0)
    with pytest.raises(Unavailable):
        second.result(PATIENCE_S)
    gate.open.set()
    closer.join(PATIENCE_S)
    assert result == [False]
    del first


def test_closing_a_driver_that_was_never_started_fails_what_waits_at_once() -> None:
    """There is no thread that could compute it, so nobody waits for one."""
    clock = FakeClock()  # it stands still: a wait would never end
    driver = BatchDriver(clock=clock)
    future = driver.add_queue(squares).submit(3)
    assert not driver.close()
    with pytest.raises(Unavailable):
        future.result(0)
    assert BatchDriver(clock=clock).close()


def test_a_closed_driver_takes_no_queue() -> None:
    """Its thread has ended, and nothing would answer who waits for the queue."""
    driver = BatchDriver().start()
    driver.close()
    with pytest.raises(Unavailable):
        driver.add_queue(squares)


def added_while_closing() -> Exception:
    """Adds queues until the driver is closed; returns what the last one was told."""
    driver = BatchDriver().start()
    may_close = threading.Event()
    told: Future[Exception] = Future()

    def add() -> None:
        try:
            while True:
                driver.add_queue(squares)
                may_close.set()
        except Exception as error:
            told.set_result(error)

    threading.Thread(target=add, daemon=True).start()
    assert may_close.wait(PATIENCE_S)
    driver.close()
    return told.result(PATIENCE_S)


def test_a_queue_comes_before_the_end_or_not_at_all() -> None:
    """Whoever adds one while the driver closes gets it, or is told so at once."""
    assert {type(added_while_closing()) for _ in range(20)} == {Unavailable}


@pytest.mark.parametrize("timeout_s", [0.0, -1.0])
def test_an_item_without_any_time_left_is_not_computed(timeout_s: float) -> None:
    """No time is not the same as no limit."""
    gate = Gate(as_they_came)
    with BatchDriver() as driver:
        queue = driver.add_queue(gate, timeout_s=60.0)
        first = queue.submit("first")
        assert gate.entered.wait(PATIENCE_S)
        late = queue.submit("late", timeout_s=timeout_s)
        gate.open.set()
        assert first.result(PATIENCE_S) == "first"
        with pytest.raises(DeadlineExceeded):
            late.result(PATIENCE_S)


def test_a_removed_queue_refuses_later_items() -> None:
    """Removal drains one queue; others go on."""
    with BatchDriver() as driver:
        queue = driver.add_queue(squares)
        other = driver.add_queue(squares)
        future = queue.submit(2)
        queue.remove()
        with pytest.raises(Unavailable):
            queue.submit(3).result(PATIENCE_S)
        assert future.result(PATIENCE_S) == 4
        assert other.submit(5).result(PATIENCE_S) == 25


def test_a_queue_that_cannot_work_is_refused_at_once() -> None:
    """The caller of add_queue hears of it, not the driver's thread."""
    with BatchDriver() as driver, pytest.raises(InvalidArgument):
        driver.add_queue(squares, BatchQueueOptions(splits=True))
    with BatchDriver() as driver, pytest.raises(FailedPrecondition):
        driver.add_queue(
            squares,
            BatchQueueOptions(splits=True),
            QueuePolicy(window=WindowOptions()),
        )
