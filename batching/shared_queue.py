"""One queue's place in a scheduler: how its batches are formed, and what they cost."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from batching.batch import Batch, FaultyTasks, Runner
from batching.burst_window import BurstWindow
from batching.cost_table import CostTable
from batching.deadline_window import DeadlineWindow
from batching.length_window import LengthWindow
from batching.queue_stats import QueueStats
from batching.scheduler_options import Padding, QueuePolicy
from tfs.core.batch.batch_queue import BatchQueue
from tfs.core.batch.batch_task import Task
from tfs.core.errors import DeadlineExceeded, ServingError

TaskT = TypeVar("TaskT", bound=Task)

_FIRST_LOOK = 32  # observations before the first look at cheaper sizes
_LOOK_AGAIN = 1024
# A queue pays for no more than so many times what its long batches take, but always for
# so many seconds.
_LARGEST_JUMP = 3.0
_ALWAYS_PAID_S = 1.0


class SharedQueue(Generic[TaskT]):
    """A batch queue, its runner and its account. Confined to the scheduler's thread.

    Made by ``SharedBatchScheduler.add_queue``. All attributes that are not listed here
    belong to the scheduler.

    A batch that fails runs again in halves until each task at fault has failed alone, so
    nobody gets the error of somebody else's task. From a failure to the next success
    tasks are not joined, so a model that always fails is called no more often than
    without a queue.

    Attributes:
        waiting: The tasks that wait.
        policy: How it is treated among others.
        costs: Measured time by batch size; kept up to date.
        stats: What it has counted.
        lengths: Chooses tasks by their lengths; None takes them as they came.
        num_in_flight: Its batches on the device.
        closing: Whether it was removed and is only draining.
        is_failing: Whether nothing has succeeded since a batch failed.

    """

    __slots__ = (
        "bursts",
        "closing",
        "costs",
        "credit_s",
        "in_ring",
        "is_aside",
        "is_failing",
        "is_greedy",
        "is_plain",
        "learns",
        "lengths",
        "long_batch_s",
        "look_again_at",
        "max_in_flight",
        "next_sweep_s",
        "num_in_flight",
        "on_drained",
        "padded",
        "padded_at",
        "policy",
        "put",
        "quantum_s",
        "retries",
        "round_index",
        "rows_counts",
        "run",
        "scheduler",
        "stats",
        "take",
        "takes_plainly",
        "timer_s",
        "waiting",
        "window",
    )

    def __init__(
        self,
        waiting: BatchQueue[TaskT],
        runner: Runner[TaskT],
        policy: QueuePolicy,
        costs: CostTable,
        scheduler: Any,
        quantum_s: float,
        lengths: LengthWindow | None = None,
    ) -> None:
        options = waiting.options
        low_timeout_s = options.low.timeout_s if options.low else 0.0
        self.waiting = waiting
        self.scheduler = scheduler
        self.policy = policy
        self.costs = costs
        self.stats = QueueStats(options.max_batch_rows)
        self.window = (
            DeadlineWindow(policy.window, costs, options.max_batch_rows)
            if policy.window
            else None
        )
        self.lengths = lengths if policy.window is None else None
        # The hot path reads these instead of the objects that they come from.
        self.put = waiting.put if self.window is None else self._put_noting
        self.take = waiting.take
        self.run = runner.run
        self.rows_counts = self.stats.rows_counts
        self.is_greedy = not options.timeout_s and not low_timeout_s
        self.bursts: BurstWindow | None = None
        if self.is_greedy and costs and policy.window is None:
            self.bursts = BurstWindow(costs, options.max_batch_rows)
        self.takes_plainly = (
            policy.window is None
            and policy.padding is Padding.UP
            and self.lengths is None
        )
        self.is_plain = self.takes_plainly  # and no batch has to be run again or alone
        self.learns = bool(policy.window or options.allowed_rows or costs)
        self.max_in_flight = policy.max_in_flight or 1 << 30
        self.padded = [
            options.next_allowed(n) for n in range(options.max_batch_rows + 1)
        ]
        self.padded_at = 0
        self.look_again_at = _FIRST_LOOK
        self.retries: deque[tuple[list[TaskT], float]] = deque()
        self.num_in_flight = 0
        self.in_ring = False  # in the ring, aside, or due in a later round
        self.is_aside = False
        self.timer_s = math.inf
        self.next_sweep_s = 0.0
        self.is_failing = False
        # Device time that may still be used in round `round_index`.
        self.quantum_s = quantum_s * policy.weight
        self.credit_s = self.quantum_s
        self.long_batch_s = 0.0
        self.round_index = 0
        self.closing = False
        self.on_drained: Callable[[], None] | None = None

    def _put_noting(self, task: TaskT, now_s: float, low: bool) -> bool:
        """Puts a task into the queue, and notes its arrival if it stays there."""
        admitted = self.waiting.put(task, now_s, low)
        if admitted and self.window is not None:
            self.window.note_arrival(task.num_rows, now_s)
        return admitted

    @property
    def is_idle(self) -> bool:
        """Whether none of its tasks waits or runs."""
        return not (self.waiting.num_rows or self.num_in_flight or self.retries)

    def form(self, now_s: float) -> tuple[list[TaskT], int, float, bool]:
        """Takes the next batch in the cases where that takes more than ``take``.

        Returns:
            As ``BatchQueue.take``, and whether it runs again.

        """
        waiting = self.waiting
        if self.retries:
            tasks, oldest_s = self.retries.popleft()
            self._set_plain()
            tasks = _alive(tasks, now_s, waiting.options.name)
            return tasks, sum([task.num_rows for task in tasks]), oldest_s, True
        window = self.window
        if window is not None:
            most = 1 if self.is_failing else waiting.options.max_batch_rows
            taken = waiting.take_ranked(
                lambda ranked: _at_most(most, window.choose(ranked, now_s)), now_s
            )
        elif self.is_failing:
            taken = waiting.take_one(now_s)
        elif self.lengths is not None:
            lengths = self.lengths
            taken = waiting.take_chosen(
                lambda tasks: lengths.choose(tasks, now_s), now_s
            )
        else:
            taken = waiting.take(now_s, self._room(waiting.num_rows))
            if not taken[0] and waiting.num_rows:
                taken = waiting.take(now_s)  # its first task needs more than that
        return (*taken, False)

    def sort_out(
        self, batch: Batch[TaskT], error: ServingError
    ) -> tuple[list[TaskT], list[ServingError]]:
        """Returns which tasks of a failed batch end now, and how; the others run again."""
        self.stats.num_failures += 1
        tasks = batch.tasks
        if isinstance(error, FaultyTasks):
            ends = sorted(error.errors)
            others = [t for index, t in enumerate(tasks) if index not in error.errors]
            if others:
                self._run_again(others, batch)
            self.stats.num_failed_tasks += len(ends)
            return [tasks[index] for index in ends], [error.errors[i] for i in ends]
        may_help = self.policy.retries_alone
        if len(tasks) > 1 and may_help is not None and may_help(error):
            if not batch.is_retry:
                self.is_failing = True
            half = len(tasks) // 2
            self._run_again(tasks[:half], batch)
            self._run_again(tasks[half:], batch)
            return [], []
        self.stats.num_failed_tasks += len(tasks)
        return tasks, [error] * len(tasks)

    def _run_again(self, tasks: list[TaskT], batch: Batch[TaskT]) -> None:
        self.stats.num_retries += 1
        self.is_plain = False
        self.retries.append((tasks, batch.oldest_s))

    def recover(self) -> None:
        """Joins tasks again: one has succeeded."""
        self.is_failing = False
        self._set_plain()

    def _set_plain(self) -> None:
        self.is_plain = self.takes_plainly and not self.retries and not self.is_failing

    def end_dead(self, tasks: Sequence[TaskT]) -> None:
        """Ends tasks that nobody waits for any more, and counts them."""
        self.waiting.end_dead(tasks)

    def take_over(self, other: SharedQueue[TaskT]) -> None:
        """Continues the counts of a queue that has drained and that this one replaces."""
        self.stats.add(other.stats)
        mine, others = self.waiting, other.waiting
        mine.num_refused += others.num_refused
        mine.num_expired += others.num_expired
        mine.num_cancelled += others.num_cancelled
        mine.num_evicted += others.num_evicted
        mine.num_split += others.num_split

    def has_share(self, round_index: int) -> bool:
        """Adds the shares of the rounds that passed; returns whether any share is left.

        At most one round's share is saved up.
        """
        rounds = round_index - self.round_index
        self.round_index = round_index
        self.credit_s = min(self.credit_s + rounds * self.quantum_s, self.quantum_s)
        return self.credit_s > 0

    def note_long(self, batch: Batch[TaskT], device_s: float) -> None:
        """Notes a batch that took long: it is charged, and a burst may have begun it."""
        self.charge(device_s)
        bursts = self.bursts
        if bursts is not None and not batch.is_retry:
            waiting = self.waiting
            bursts.note(batch.tasks, waiting.tasks, batch.started_s)
            waiting.timeout_s = bursts.wait_s
            self.is_greedy = not bursts.wait_s

    def charge(self, device_s: float) -> None:
        """Takes the time of a long batch off the queue's share.

        A batch that took much longer than the others was interrupted, or was the first
        and compiled something. Charged in full, one stall of half a minute would keep
        the queue from a busy device for as long again.
        """
        most_s = max(_LARGEST_JUMP * self.long_batch_s, _ALWAYS_PAID_S)
        device_s = min(device_s, most_s)
        self.long_batch_s += 0.5 * (device_s - self.long_batch_s)
        self.credit_s -= device_s

    def learn(
        self, tasks: Sequence[TaskT], num_rows: int, padded_rows: int, device_s: float
    ) -> None:
        """Learns how long a batch took."""
        waiting = self.waiting
        known_s = waiting.s_per_row
        s_per_row = device_s / num_rows
        waiting.s_per_row = (
            known_s + 0.1 * (s_per_row - known_s) if known_s else s_per_row
        )
        if self.lengths is not None:
            self.lengths.observe(tasks, device_s)
        elif self.learns:
            self.costs.observe(padded_rows, device_s)
            self.refresh_padding()

    def refresh_padding(self) -> None:
        """Recomputes what to pad to, if the measured times changed much."""
        if self.costs.num_changes < self.padded_at:
            return
        # Times drift slowly, so a table of sizes is good for a number of batches. Only
        # the first few batches, of which nothing was known, update it at once.
        self.padded_at = self.costs.num_changes + min(
            1 + self.costs.num_changes // 16, 64
        )
        if self.costs:
            options = self.waiting.options
            self._look_again()
            # If no sizes were fixed, any batch may be padded, but only where that
            # passes a step of the kernels.
            cheaper = 0.9 if options.allowed_rows else 0.8
            most = options.max_batch_rows
            sizes = options.allowed_rows or [n for n in self.costs.sizes if n <= most]
            larger = self.costs.cheaper_sizes(sizes, cheaper)
            next_sizes = [options.next_allowed(rows) for rows in range(1, most + 1)]
            self.padded = [0, *(larger.get(size, size) for size in next_sizes)]

    def _look_again(self) -> None:
        """From time to time lets sizes be tried again that batches are padded past.

        Such a size is not measured any more, and it may have looked expensive only
        because of noise. It is tried again soon at first, and seldom later.
        """
        if self.costs.num_changes < self.look_again_at:
            return
        self.look_again_at = self.costs.num_changes + min(
            self.look_again_at, _LOOK_AGAIN
        )
        options = self.waiting.options
        for rows, size in enumerate(self.padded):
            next_size = options.next_allowed(rows)
            if size != next_size:
                self.costs.doubt(next_size)

    def _room(self, num_waiting_rows: int) -> int | None:
        """Returns how many rows to take for little padding; None sets no limit."""
        options = self.waiting.options
        rows = min(num_waiting_rows, options.max_batch_rows)
        allowed = options.allowed_rows
        if not allowed or self.policy.padding is Padding.UP or rows in allowed:
            return None
        down = max((size for size in allowed if size < rows), default=0)
        if not down:
            return None
        if self.policy.padding is Padding.CHEAPEST:
            if not self.costs:
                return None
            up_s = self.costs.predict_s(self.padded[rows]) / rows
            if up_s <= self.costs.predict_s(down) / down:
                return None
        return down


AnyQueue: TypeAlias = SharedQueue[Any]


def _at_most(num: int, chosen: tuple[int, int]) -> tuple[int, int]:
    start, stop = chosen
    return start, min(stop, start + num)


def _alive(tasks: Sequence[TaskT], now_s: float, name: str) -> list[TaskT]:
    """Returns those tasks that somebody still waits for, and ends the others."""
    alive = []
    for task in tasks:
        error = task.cancel.error
        if error is None and task.deadline_s is not None and task.deadline_s <= now_s:
            error = DeadlineExceeded(f"{name}: deadline passed before a retry")
        if error is None:
            alive.append(task)
        else:
            task.on_done(error)
    return alive
