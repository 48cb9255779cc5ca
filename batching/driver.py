"""Batching as a library: a thread of its own, futures, plain functions.

The thread is a serving loop whose only hook is the scheduler's ``step``, as in the
server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

from batching.batch import Batch
from batching.batching_options import QueuePolicy, SchedulerOptions
from batching.cost_table import CostTable
from batching.shared_scheduler import SharedBatchScheduler
from tfs.core.batch.batch_queue import BatchQueue
from tfs.core.batch.batch_queue_options import BatchQueueOptions
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import (
    Cancelled,
    Internal,
    ServingError,
    Unavailable,
    serving_error,
)
from tfs.core.executor import Executor, ThreadExecutor
from tfs.core.loop.serving_loop import Phase, ServingLoop

_PATIENCE_S = 10.0  # real seconds that the loop may take to run a posted function

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


@dataclass(slots=True, eq=False)
class ItemTask(Generic[ItemT, ResultT]):
    """A task of one item. It is its own ``cancel`` token, which reads the future."""

    item: ItemT
    num_rows: int
    deadline_s: float | None
    arrived_s: float = 0.0  # written by the queue
    future: Future[ResultT] = field(default_factory=Future)

    @property
    def cancel(self) -> ItemTask[ItemT, ResultT]:
        return self

    @property
    def error(self) -> ServingError | None:
        return Cancelled("cancelled by its caller") if self.future.cancelled() else None

    def on_done(self, outcome: Any) -> None:
        future = self.future
        if not future.set_running_or_notify_cancel():
            return
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


class _FunctionRunner(Generic[ItemT, ResultT]):
    """Calls a function with the items of a batch on the driver's executor."""

    def __init__(
        self,
        function: Callable[[Sequence[ItemT]], Iterable[ResultT]],
        executor: Executor,
        loop: ServingLoop,
        name: str,
    ) -> None:
        self._function = function
        self._executor = executor
        self._loop = loop
        self._name = name

    def run(self, batch: Batch[ItemTask[ItemT, ResultT]]) -> None:
        self._executor.submit(lambda: self._compute(batch))

    def _compute(self, batch: Batch[ItemTask[ItemT, ResultT]]) -> None:
        outcomes: Sequence[ResultT] | ServingError
        try:
            results = self._function([task.item for task in batch.tasks])
            outcomes = _in_order(results, len(batch.tasks), self._name)
        except (Exception, SystemExit) as error:
            outcomes = serving_error(error, self._name)
        self._loop.post(lambda: batch.done(outcomes))


def _in_order(results: Iterable[ResultT], num_items: int, name: str) -> list[ResultT]:
    """Returns the results as the scheduler expects them: a sequence with one per item.

    Raises:
        Internal: The function returned something else, which the message names.

    """
    # The function is its author's, and may return anything whatever its types say.
    if not isinstance(results, Iterable):
        raise Internal(
            f"{name}: the function returned a {type(results).__name__}; it has to "
            "return a list with one result per item, in order"
        )
    ordered = list(results)
    if len(ordered) != num_items:
        raise Internal(
            f"{name}: the function returned {len(ordered)} results for {num_items} "
            "items; it has to return one per item, in order"
        )
    return ordered


class DrivenQueue(Generic[ItemT, ResultT]):
    """A queue of a driver. Thread-safe. Made by ``BatchDriver.add_queue``."""

    def __init__(
        self,
        driver: BatchDriver,
        shared: BatchQueue[ItemTask[ItemT, ResultT]],
        default_timeout_s: float | None,
    ) -> None:
        self._driver = driver
        self._default_timeout_s = default_timeout_s
        self._removed = False
        self.shared = shared

    def submit(
        self,
        item: ItemT,
        *,
        num_rows: int = 1,
        timeout_s: float | None = None,
        low: bool = False,
    ) -> Future[ResultT]:
        """Queues ``item`` and returns its future result; does not block.

        The future fails with a ServingError if the queue is full or the driver is
        closed (UNAVAILABLE), if no batch has taken the item within ``timeout_s``
        (DEADLINE_EXCEEDED; of 0 seconds or less nothing is left), or if the function
        fails. What the function has begun is not interrupted, and its result counts
        even if it is late. Cancelling the future takes the item out of the queue.
        """
        if timeout_s is None:
            timeout_s = self._default_timeout_s
        shared = None if self._removed else self.shared
        return self._driver.submit(shared, item, num_rows, timeout_s, low)

    def remove(self) -> None:
        """Lets the queue drain; later items fail with UNAVAILABLE. Returns at once."""
        self._removed = True
        scheduler = self._driver.scheduler
        self._driver.loop.post(lambda: scheduler.remove_queue(self.shared))


class BatchDriver:
    """Runs a scheduler on a thread of its own. Thread-safe; a context manager.

    Args:
        options: How many batches run at a time, and so how many threads compute.
        clock: For deadlines and timeouts.
        executor: Runs the functions; by default ``num_batch_threads`` threads.

    """

    def __init__(
        self,
        options: SchedulerOptions | None = None,
        clock: Clock | None = None,
        executor: Executor | None = None,
    ) -> None:
        options = options or SchedulerOptions(serial=False)
        self._clock = clock or MonotonicClock()
        self._executor = executor or ThreadExecutor(
            options.num_batch_threads, "batch", self._clock
        )
        self.loop = ServingLoop(self._clock, name="batch-driver")
        self.scheduler = SharedBatchScheduler(options, self._clock)
        self.loop.add_round_hook(self.scheduler.step, Phase.SCHEDULE)
        # Guards `_closed`, and ensures that nothing is posted after that was set but the
        # end; leaf lock.
        self._changed = threading.Condition()
        self._closed = False
        self._drained = False
        self._started = False

    def start(self) -> BatchDriver:
        """Starts the thread."""
        self._started = True
        self.loop.start()
        return self

    def add_queue(
        self,
        function: Callable[[Sequence[ItemT]], Iterable[ResultT]],
        options: BatchQueueOptions | None = None,
        policy: QueuePolicy | None = None,
        *,
        timeout_s: float | None = None,
        costs: CostTable | None = None,
    ) -> DrivenQueue[ItemT, ResultT]:
        """Adds a queue whose batches ``function`` computes.

        ``function`` gets the items of a batch and returns one result per item, in
        order. A result that is an exception fails its item. If the function raises, the
        batch is run again in halves, so it should not have side effects. ``timeout_s``
        applies to each item that has none of its own.

        Raises:
            Unavailable: The driver is closed.
            ServingError: The options cannot work.

        """
        options = options or BatchQueueOptions()
        runner = _FunctionRunner(function, self._executor, self.loop, options.name)
        made: Future[BatchQueue[ItemTask[ItemT, ResultT]]] = Future()

        def add() -> None:
            try:
                made.set_result(
                    self.scheduler.add_queue(runner, options, policy, costs=costs)
                )
            except ServingError as error:
                made.set_exception(error)

        with self._changed:
            if self._closed:
                raise Unavailable("the batch driver is closed")
            # Once the loop's thread runs, the scheduler belongs to it.
            if self._started and not self.loop.is_loop_thread:
                self.loop.post(add)
            else:
                add()
        return DrivenQueue(self, made.result(_PATIENCE_S), timeout_s)

    def submit(
        self,
        queue: BatchQueue[ItemTask[ItemT, ResultT]] | None,
        item: ItemT,
        num_rows: int,
        timeout_s: float | None,
        low: bool,
    ) -> Future[ResultT]:
        """Queues an item, or fails it if there is no queue any more."""
        deadline_s = None if timeout_s is None else self._clock.now() + timeout_s
        task: ItemTask[ItemT, ResultT] = ItemTask(item, num_rows, deadline_s)
        with self._changed:
            closed = self._closed or queue is None
            if queue is not None and not closed:
                self.loop.post(lambda: self.scheduler.submit(queue, task, low))
        if closed:
            task.on_done(Unavailable("the batch queue is closed"))
        return task.future

    def close(self, timeout_s: float = 60.0) -> bool:
        """Computes the items that wait, then ends the threads; idempotent.

        Returns whether everything was computed within ``timeout_s``. If not, the items
        that still wait fail with UNAVAILABLE. A driver that was never started computes
        nothing any more.
        """
        deadline_s = self._clock.now() + timeout_s
        with self._changed:
            first, self._closed = not self._closed, True
        if first and self._started:
            self.loop.post(self._drain)
        elif first:  # there is no thread, so the loop belongs to the caller
            self.loop.post(self._end_unstarted)
            self.loop.step()
        if not self._started:
            self._executor.close(deadline_s)
            self.loop.close(deadline_s)
            return self._drained
        with self._changed:
            while not self._drained and self._clock.now() < deadline_s:
                self._clock.wait(self._changed, deadline_s)
            drained = self._drained
        if not drained:
            failed = threading.Event()
            self.loop.post(self._fail_all)
            self.loop.post(failed.set)
            failed.wait(_PATIENCE_S)  # nothing on the loop blocks, so this is quick
        self._executor.close(deadline_s)
        self.loop.close(deadline_s)
        return drained

    def _drain(self) -> None:
        for queue in self.scheduler.queues:
            self.scheduler.remove_queue(queue, self._note_drained)
        self._note_drained()

    def _end_unstarted(self) -> None:
        self._drained = not any(map(len, self.scheduler.queues))
        self._fail_all()

    def _fail_all(self) -> None:
        error = Unavailable("the batch driver is closed")
        for queue in self.scheduler.queues:
            self.scheduler.remove_queue(queue, error=error)

    def _note_drained(self) -> None:
        if not self.scheduler.queues:
            with self._changed:
                self._drained = True
                self._changed.notify_all()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
