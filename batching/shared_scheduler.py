"""Shares one device between many batch queues. Owns no thread.

Whoever owns the thread calls ``submit``, ``step`` and ``Batch.done`` on it: the serving
loop by a round hook, or :class:`batching.driver.BatchDriver`. A batch is formed only
when the device has room for it. So batches grow by themselves while the device is busy,
and nobody waits while it is idle. A timeout is possible but is not what makes batches.

``turn_order.py`` decides whose batch is next, by measured device time.
``queue_timers.py`` knows when to look at queues that wait for time to pass.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

from batching.batch import Batch, Runner
from batching.batching_options import QueuePolicy, SchedulerOptions
from batching.burst_window import BurstWindow
from batching.cost_table import BatchSizes, CostTable, Padding
from batching.deadline_window import DeadlineWindow
from batching.queue_timers import QueueTimers
from batching.turn_order import AnyQueue, TurnOrder, charge
from tfs.core.batch.batch_queue import BatchQueue
from tfs.core.batch.batch_queue_options import BatchQueueOptions, Window
from tfs.core.batch.batch_task import Join, Split, Task
from tfs.core.batch.queue_stats import QueueStats, num_batches_meant
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import FailedPrecondition, ServingError, serving_error

TaskT = TypeVar("TaskT", bound=Task)

_NEVER = math.inf
AnyBatch: TypeAlias = Batch[Any]


class SharedBatchScheduler:
    """Runs the batches of many queues on one device. Confined to one thread.

    Args:
        options: How the device is shared.
        clock: Tells durations of batches and arrival times.

    Attributes:
        num_in_flight: Batches that were handed to runners and are not done.

    """

    def __init__(
        self,
        options: SchedulerOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.options = options or SchedulerOptions()
        self.num_in_flight = 0
        self.now = (clock or MonotonicClock()).now
        self.serial = self.options.serial
        self._queues: dict[AnyQueue, None] = {}
        # One clock reading serves all tasks that come between two steps.
        self._burst_s: float | None = None
        self._turns = TurnOrder()
        self._ring = self._turns.ring  # read for each task
        self._timers = QueueTimers()
        self.stepping = False
        self.last_done_s = -_NEVER

    # -- queues -------------------------------------------------------------------

    @property
    def queues(self) -> Iterable[AnyQueue]:
        """All queues, including those that drain, in the order they were added."""
        return tuple(self._queues)

    def add_queue(
        self,
        runner: Runner[TaskT],
        options: BatchQueueOptions | None = None,
        policy: QueuePolicy | None = None,
        *,
        costs: CostTable | None = None,
        split: Split[TaskT] | None = None,
        join: Join[TaskT] | None = None,
        window: Window | None = None,
        stats: QueueStats | None = None,
    ) -> BatchQueue[TaskT]:
        """Adds a queue whose batches ``runner`` computes.

        Args:
            runner: See :class:`batching.batch.Runner`.
            options: What is admitted, and when batches start.
            policy: Weight, padding, retries.
            costs: Time by batch size measured beforehand; updated from now on.
            split: Makes parts of a task; needed if ``options.splits``.
            join: Makes the outcome of a task that was split from those of its parts.
            window: Chooses which tasks go together; the policy's deadline window takes
                precedence.
            stats: What a former queue has counted, which this one continues.

        """
        options = options or BatchQueueOptions()
        policy = policy or QueuePolicy()
        if policy.window is not None and options.splits:
            raise FailedPrecondition(
                f"{options.name}: a deadline window ranks whole tasks; do not split"
            )
        costs = CostTable() if costs is None else costs
        if policy.window is not None:
            window = DeadlineWindow(policy.window, costs, options.max_batch_rows)
        queue = BatchQueue(
            options,
            split=split,
            join=join,
            window=window,
            stats=QueueStats() if stats is None else stats,
        )
        learns = bool(policy.window or options.allowed_rows or costs)
        sizes = BatchSizes(queue, policy.padding, costs, learns=learns)
        queue.scheduler = self
        queue.run = runner.run
        queue.learn = sizes.learn
        queue.room_of = None if policy.padding is Padding.UP else sizes.room_of
        low_timeout_s = options.low.timeout_s if options.low else 0.0
        queue.is_greedy = not options.timeout_s and not low_timeout_s
        queue.note_burst = None
        if queue.is_greedy and costs and policy.window is None:
            queue.note_burst = BurstWindow(costs, options.max_batch_rows).note
        queue.max_in_flight = policy.max_in_flight or 1 << 30
        queue.quantum_s = queue.credit_s = self.options.quantum_s * policy.weight
        queue.round_index = self._turns.round_index
        queue.set_plain()
        self._queues[queue] = None
        return queue

    def remove_queue(
        self,
        queue: AnyQueue,
        on_drained: Callable[[], None] | None = None,
        error: ServingError | None = None,
    ) -> None:
        """Lets ``queue`` drain: it admits nothing more, and waiting tasks are due at once.

        With an ``error``, waiting tasks end with it instead. ``on_drained`` is called
        once none of its tasks waits or runs, possibly before this returns. A second
        removal only adds its callback.
        """
        if queue not in self._queues:
            if on_drained is not None:
                on_drained()
            return
        previous = queue.on_drained
        if previous is not None and on_drained is not None:
            first, second = previous, on_drained

            def both() -> None:
                first()
                second()

            on_drained = both
        queue.on_drained = on_drained or previous
        queue.closing = True
        queue.close()
        if error is not None:
            queue.fail_all(error)
        self.note(queue, self._time())
        self.drop_if_drained(queue)

    # -- work -----------------------------------------------------------------------

    def submit(self, queue: BatchQueue[TaskT], task: TaskT, low: bool = False) -> None:
        """Puts ``task`` into ``queue``; it ends through its ``on_done``, exactly once.

        Runs no batch; ``step`` does. Tasks submitted between two steps count as having
        arrived together.
        """
        now_s = self._burst_s
        if now_s is None:
            now_s = self._burst_s = self.now()
        if not queue.put(task, now_s, low):
            return
        if queue.in_ring:
            if queue.is_aside and not low:
                self._turns.promote(queue)
        elif queue.is_greedy and queue.num_in_flight < queue.max_in_flight:
            if low:
                self._turns.line_up(queue)
            else:
                queue.in_ring = True
                self._ring.append(queue)
        else:
            self.note(queue, now_s)

    def submit_all(self, queue: BatchQueue[TaskT], tasks: Sequence[TaskT]) -> None:
        """Does as :meth:`submit` with each task in turn; all have equally many rows."""
        if queue.is_aside:
            for task in tasks:
                self.submit(queue, task)
            return
        now_s = self._burst_s
        if now_s is None:
            now_s = self._burst_s = self.now()
        if not queue.put_all(tasks, now_s) and not queue.num_rows:
            return
        if not queue.in_ring:
            if queue.is_greedy and queue.num_in_flight < queue.max_in_flight:
                queue.in_ring = True
                self._ring.append(queue)
            else:
                self.note(queue, now_s)

    def begin_now(self, queue: AnyQueue, num_rows: int) -> float | None:
        """Tells whether tasks may be computed at once, as the batch that they would be.

        They may if nothing else waits for the device or runs on it, and the queue would
        neither wait for more tasks nor pad so few rows. A caller that gets a time
        either computes the tasks before anything else happens on this thread and calls
        ``end_now``, or submits them.

        Returns:
            The time when they begin; None if the tasks have to be submitted.

        """
        turns = self._turns
        if (
            self.num_in_flight
            or self._ring
            or turns.last
            or turns.later
            or turns.aside
            or self.stepping
            or queue.closing
            or not queue.is_plain
            or not queue.is_greedy
            or queue.num_rows
            or queue.padded[num_rows] != num_rows
        ):
            return None
        return self.now()

    def end_now(
        self,
        queue: AnyQueue,
        num_tasks: int,
        num_rows: int,
        begun_s: float,
        *,
        failed: bool,
    ) -> None:
        """Counts tasks that bypassed ``queue`` as the batch that they would have been."""
        now_s = self.last_done_s = self.now()
        device_s = now_s - begun_s
        turns = self._turns
        if queue.credit_s <= 0.0 and not turns.has_share(queue):
            # Rounds pass at once while nobody else wants the device.
            turns.round_index += turns.num_rounds_owed(queue)
            turns.has_share(queue)
        if device_s < queue.quantum_s:
            queue.credit_s -= device_s
        else:
            charge(queue, device_s)
        counts = queue.rows_counts
        counts[num_rows] = num_alike = counts[num_rows] + 1
        stats = queue.stats
        if num_rows != num_tasks:
            stats.note_shape(num_tasks, num_rows, num_rows)
        num_meant = num_batches_meant(device_s, num_alike)
        if num_meant:
            stats.note_times(0.0, device_s, 0, num_meant)
        if failed:
            stats.num_failures += 1
            stats.num_failed_tasks += num_tasks
            return
        if num_meant:
            queue.learn((), num_rows, num_rows, device_s)

    def step(self, now_s: float) -> float | None:
        """Starts every batch that may start now.

        Returns:
            When the next step is due: a time not after ``now_s`` means at once, None
            means that only ``submit`` or ``Batch.done`` can bring work.

        """
        turns, timers = self._turns, self._timers
        if not (self._ring or timers.heap or turns.last or turns.later or turns.aside):
            self._burst_s = None
            return None  # this is so for most devices in most rounds
        self._burst_s = now_s
        self.stepping = True
        try:
            if timers.heap:
                for queue in timers.due(now_s):
                    self.note(queue, now_s)
                    if queue.closing:
                        self.drop_if_drained(queue)
            more = self._dispatch(now_s)
        finally:
            self.stepping = False
            self._burst_s = None
        if more:
            return now_s
        if timers.heap or self._ring or turns.last or turns.later or turns.aside:
            return timers.next_s(turns.held(), now_s)
        return None

    def note(self, queue: AnyQueue, now_s: float) -> None:
        """Puts a queue into the ring, or sets its timer."""
        if queue.in_ring:
            return
        if not queue.num_rows and not queue.retries:
            return
        if queue.num_in_flight >= queue.max_in_flight:
            self._timers.await_expiry(queue)
        elif queue.is_greedy or queue.retries or queue.due_s <= now_s:
            self._turns.line_up(queue)
        else:
            self._timers.await_batch(queue)

    def _dispatch(self, now_s: float) -> bool:
        """Fills the device; returns whether it left more that could start."""
        turns = self._turns
        ring = turns.ring
        limit = self.options.num_batch_threads
        last = turns.last
        for _ in itertools.repeat(None, self.options.max_batches_per_step):
            if self.num_in_flight >= limit:
                return False
            if last is not None:
                last.in_ring = False
                if last.num_rows or last.retries:
                    self.note(last, now_s)
                last = turns.last = None
            if turns.aside:
                turns.recall(now_s)
            if not ring and not ((turns.later or turns.aside) and self._refill(now_s)):
                return False
            queue = ring.popleft()
            if queue.credit_s <= 0.0 and not turns.has_share(queue):
                turns.defer(queue)
                continue
            if queue.is_plain:
                is_retry = False
                tasks = queue.tasks
                if (
                    queue.num_rows == 1
                    and tasks  # none of low priority
                    and now_s < queue.next_deadline_s
                    and not queue.num_begun
                    and tasks[0].cancel.error is None
                ):
                    # This does what ``take`` does with a single task. With many queues
                    # most batches are single tasks, and the call would be a tenth of
                    # their cost.
                    queue.tasks = []
                    queue.num_rows = 0
                    queue.next_deadline_s = _NEVER
                    rows = 1
                    oldest_s = tasks[0].arrived_s
                else:
                    tasks, rows, oldest_s = queue.take(now_s)
            else:
                tasks, rows, oldest_s, is_retry = queue.form(now_s)
            if not tasks:
                last = turns.last = queue
                if queue.closing:
                    self.drop_if_drained(queue)
                continue
            batch: AnyBatch = Batch()
            batch.queue = queue
            batch.tasks = tasks
            batch.num_rows = rows
            batch.padded_rows = queue.padded[rows]
            batch.oldest_s = oldest_s
            batch.started_s = now_s
            batch.is_retry = is_retry
            batch.is_done = False
            self.num_in_flight += 1
            queue.num_in_flight += 1
            run = queue.run
            try:
                run(batch)
            except Exception as error:
                if not batch.is_done:
                    name = queue.options.name
                    batch.done(serving_error(error, f"{name}: runner"))
            if batch.is_done:  # the runner computed it at once
                now_s = self.last_done_s
                queue.in_ring = False
                if queue.num_rows or queue.retries:
                    self.note(queue, now_s)
            else:
                last = turns.last = queue
        return bool(ring or turns.last or turns.later or turns.aside)

    def _refill(self, now_s: float) -> bool:
        """Fills the empty ring with queues whose round comes next or that stood aside."""
        turns = self._turns
        while (
            turns.later and not turns.ring
        ):  # nothing of a whole round may be due any more
            for queue in turns.begin_next_round():
                self.note(queue, now_s)
                if queue.closing:
                    self.drop_if_drained(queue)
        return bool(turns.ring) or turns.admit_aside()

    def restart(self, now_s: float) -> None:
        """Keeps the device busy between two steps."""
        self.stepping = True
        try:
            self._dispatch(now_s)
        finally:
            self.stepping = False

    def drop_if_drained(self, queue: AnyQueue) -> None:
        if queue.is_idle and queue in self._queues:
            del self._queues[queue]
            if queue.on_drained is not None:
                queue.on_drained()

    def _time(self) -> float:
        return self.now() if self._burst_s is None else self._burst_s
