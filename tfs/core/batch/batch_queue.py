"""The queue in front of a model: tasks that wait to be computed together.

Tasks wait one by one, in arrival order. A batch is formed only when somebody takes it,
so it grows until the last moment, and a task whose caller has given up leaves without
costing compute. It has neither a thread nor a clock. (TensorFlow's SharedBatchScheduler
assigns tasks to batches on arrival instead, before it is known who will still be
waiting.) Limits count rows, never tasks. The caller owns time: every decision takes
``now_s``.

``batching`` shares devices between many such queues; ``tfs.runtime.batched`` puts one
in front of a part of a model.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any, Generic, cast

from tfs.core.batch.batch_queue_options import (
    NEVER,
    NOW,
    BatchQueueOptions,
    LowPriority,
    Mixing,
    Window,
)
from tfs.core.batch.batch_task import (
    Join,
    Split,
    SplitTask,
    Task,
    TaskT,
    finish_splits,
)
from tfs.core.batch.queue_stats import QueueStats
from tfs.core.errors import (
    DeadlineExceeded,
    InvalidArgument,
    ServingError,
    Unavailable,
)

# While other tasks wait, tasks of low priority that have aged begin one batch in so many.
# (When they began every batch, a stream of them that was more than the device computes
# aged all of them, and high priority waited behind the whole queue.)
_AGED_EVERY = 4


@dataclass(slots=True, eq=False)
class BatchQueue(Generic[TaskT]):
    """Tasks that wait to be computed together. Confined to one thread.

    Every task put in ends exactly once. Either it is taken, and the taker ends it, or
    the queue calls its ``on_done`` with the reason why it was not. The queue does that
    only in a consistent state, so ``on_done`` may put in new tasks.

    Attributes that are not listed belong to the scheduler that the queue was added to.

    Args:
        options: What is admitted, and when batches go.
        split: Makes parts of a task; needed if ``options.splits``.
        join: Makes the outcome of a task that was split from those of its parts.
        window: Chooses which tasks go together; None takes them as they came.
        stats: What a former queue has counted, which this one continues.

    Attributes:
        options: The options the queue was made with.
        num_rows: Rows that wait now.
        tasks: Waiting tasks of high priority, in arrival order. Only methods change it,
            with one exception: a taker that cannot afford to call one; see ``take``.
        num_begun: Waiting tasks of which a part has been taken already.
        next_deadline_s: No waiting task has an earlier deadline; infinite if none has
            one.
        timeout_s: Longest that the oldest task of high priority waits for a batch to
            fill; whoever takes batches may change it.
        window: As above.
        retries: Tasks to compute again, and when the oldest of their batch arrived.
        is_failing: Whether nothing has succeeded since a batch failed. Until then tasks
            are not joined, so a model that always fails is called no more often than
            without a queue.
        num_in_flight: Its batches that are computed.
        closing: Whether it was removed and is only draining.
        padded: The size to which a batch is padded, by its rows.
        stats: What it counts.
        s_per_row: Seconds that a row takes to compute, kept up to date by whoever takes
            batches; 0 while unknown. Used for hints on when to retry.

    """

    options: BatchQueueOptions
    _: KW_ONLY
    split: InitVar[Split[TaskT] | None] = None
    join: InitVar[Join[TaskT] | None] = None
    window: Window | None = None
    stats: QueueStats = field(default_factory=QueueStats)
    num_rows: int = field(default=0, init=False)
    # Lists, of which whole slices are taken: mostly all there is.
    tasks: list[TaskT] = field(default_factory=list, init=False)
    num_begun: int = field(default=0, init=False)
    next_deadline_s: float = field(default=NEVER, init=False)
    timeout_s: float = field(init=False)
    retries: deque[tuple[list[TaskT], float]] = field(default_factory=deque, init=False)
    is_failing: bool = field(default=False, init=False)
    is_plain: bool = field(default=False, init=False)
    num_in_flight: int = field(default=0, init=False)
    closing: bool = field(default=False, init=False)
    padded: Sequence[int] = field(default=(), init=False)
    s_per_row: float = field(default=0.0, init=False)
    rows_counts: list[int] = field(init=False)
    _low: list[TaskT] = field(default_factory=list, init=False)
    _low_rows: int = field(default=0, init=False)
    _closed: bool = field(default=False, init=False)
    _num_skipped_sweeps: int = field(default=0, init=False)
    # Batches since an aged task began one.
    _num_high_first: int = field(default=_AGED_EVERY, init=False)
    _split: Split[TaskT] | None = field(init=False)
    _join: Join[TaskT] | None = field(init=False)
    _max_batch_rows: int = field(init=False)
    _max_task_rows: int = field(init=False)
    _max_rows: int = field(init=False)
    _max_low_rows: int = field(init=False)
    # The scheduler's, which sets the first of them when the queue is added to it.
    scheduler: Any = field(init=False)
    run: Callable[[Any], None] = field(init=False)
    learn: Callable[[Sequence[TaskT], int, int, float], None] = field(init=False)
    room_of: Callable[[int], int | None] | None = field(init=False)
    note_burst: Callable[[Sequence[Task], Sequence[Task], float], float] | None = field(
        init=False
    )
    is_greedy: bool = field(init=False)
    max_in_flight: int = field(init=False)
    quantum_s: float = field(init=False)
    credit_s: float = field(init=False)
    round_index: int = field(init=False)
    on_drained: Callable[[], None] | None = field(default=None, init=False)
    in_ring: bool = field(default=False, init=False)  # there, aside, or due later
    is_aside: bool = field(default=False, init=False)
    timer_s: float = field(default=NEVER, init=False)
    next_sweep_s: float = field(default=0.0, init=False)
    long_batch_s: float = field(default=0.0, init=False)

    def __post_init__(
        self, split: Split[TaskT] | None, join: Join[TaskT] | None
    ) -> None:
        options, low = self.options, self.options.low
        if options.splits and (split is None or join is None):
            raise InvalidArgument(f"{options.name}: splitting needs split and join")
        self._split, self._join = split, join
        self.timeout_s = options.timeout_s
        self._max_batch_rows = options.max_batch_rows
        self._max_task_rows = options.task_rows_limit
        self._max_rows = options.rows_limit
        self._max_low_rows = (low and low.max_rows) or self._max_rows
        self.stats.make_room(options.max_batch_rows)
        self.rows_counts = self.stats.rows_counts

    # -- filling ----------------------------------------------------------------

    def put(self, task: TaskT, now_s: float, low: bool = False) -> bool:
        """Admits ``task`` or ends it; returns whether it waits now.

        A task is admitted whole or not at all. It is refused with UNAVAILABLE, and a
        hint when to retry, if the queue is full or closed, and with INVALID_ARGUMENT if
        it has more rows than any task may have.
        """
        rows = task.num_rows
        num_rows = self.num_rows + rows
        if num_rows > self._max_rows or (
            rows != 1 and not 0 < rows <= self._max_task_rows
        ):
            return self._make_room(task, now_s, low)
        if low and self.options.low is not None:
            if self._low_rows + rows > self._max_low_rows:
                return self._refuse(task, self._full_error(rows))
            self._low_rows += rows
            self._low.append(task)
        else:
            self.tasks.append(task)
        task.arrived_s = now_s
        self.num_rows = num_rows
        deadline_s = task.deadline_s
        if deadline_s is not None and deadline_s < self.next_deadline_s:
            self.next_deadline_s = deadline_s
        if self.window is not None:
            self.window.note_arrival(rows, now_s)
        return True

    def put_all(self, tasks: Sequence[TaskT], now_s: float) -> bool:
        """Puts in tasks of equal size, in order, as if by :meth:`put` for each.

        Returns whether all of them wait now.
        """
        rows = tasks[0].num_rows
        num_rows = self.num_rows + rows * len(tasks)
        if (
            num_rows > self._max_rows
            or not 0 < rows <= self._max_task_rows
            or self.window is not None
        ):
            num_waiting = 0
            for task in tasks:
                num_waiting += self.put(task, now_s)
            return num_waiting == len(tasks)
        self.tasks.extend(tasks)
        self.num_rows = num_rows
        for task in tasks:
            task.arrived_s = now_s
            deadline_s = task.deadline_s
            if deadline_s is not None and deadline_s < self.next_deadline_s:
                self.next_deadline_s = deadline_s
        return True

    def _make_room(self, task: TaskT, now_s: float, low: bool) -> bool:
        """Admits a task for which others can make room; refuses it otherwise."""
        rows = task.num_rows
        if self._closed:
            return self._refuse(
                task, Unavailable(f"{self.options.name} is closed; it takes no tasks")
            )
        if rows < 1:
            return self._refuse(
                task, InvalidArgument(f"{self.options.name}: a task needs a row")
            )
        if rows > self._max_task_rows:
            return self._refuse(
                task,
                InvalidArgument(
                    f"{self.options.name}: Task size {rows} is larger than maximum "
                    f"input batch size {self._max_task_rows}"
                ),
            )
        # A sweep looks at every task. After one that freed too little, the next comes
        # only after enough refusals to pay for it.
        self._num_skipped_sweeps += 1
        if self._num_skipped_sweeps * 8 > len(self):
            self._num_skipped_sweeps = 0
            self.drop_dead(now_s)
        missing = self.num_rows + rows - self._max_rows
        if missing <= 0:
            return self.put(task, now_s, low)
        if low or self._low_rows < missing:
            return self._refuse(task, self._full_error(rows))
        evicted: list[TaskT] = []
        while missing > 0:  # the newest go first
            task_of_low = self._low.pop()
            self._low_rows -= task_of_low.num_rows
            self.num_rows -= task_of_low.num_rows
            missing -= task_of_low.num_rows
            evicted.append(task_of_low)
        self.stats.num_evicted += len(evicted)
        # They end after the new task is in, in case they come back at once.
        self.put(task, now_s)
        for each in evicted:
            why = f"{self.options.name}: Task evicted for one of higher priority"
            again_s = self.retry_after_s(each.num_rows)
            self._end(each, Unavailable(why, retry_after_s=again_s))
        return True

    def _full_error(self, rows: int) -> ServingError:
        return Unavailable(
            f"{self.options.name}: The batch scheduling queue to which this task was "
            f"submitted is full; currently {self.num_rows} rows enqueued, task size is "
            f"{rows} and the queue holds {self._max_rows}",
            retry_after_s=self.retry_after_s(rows),
        )

    def _refuse(self, task: TaskT, error: ServingError) -> bool:
        self.stats.num_refused += 1
        task.on_done(error)
        return False

    # -- when ---------------------------------------------------------------------

    def __len__(self) -> int:
        """How many tasks wait."""
        return len(self.tasks) + len(self._low)

    @property
    def due_s(self) -> float:
        """When the next batch has to go, exactly: -inf means now, inf means never.

        That is when the oldest task has waited for its timeout, or earlier if a task
        would be late otherwise.
        """
        due_s = self._window_end_s
        deadline_s = self.next_deadline_s
        if deadline_s == NEVER or due_s == NOW:
            return due_s
        compute_s = 2.0 * self.s_per_row * min(self.num_rows, self._max_batch_rows)
        # The way to the device and back takes time, too.
        lead_s = max(compute_s, (deadline_s - self.oldest_s) / 4)
        return min(due_s, deadline_s - lead_s)

    @property
    def _window_end_s(self) -> float:
        """When the next batch has to go, if it were not for deadlines."""
        if not self._low:
            if not self.tasks:
                return NEVER
            if self.num_rows >= self._max_batch_rows or self._closed:
                return NOW
            return self.tasks[0].arrived_s + self.timeout_s
        if self._closed:
            return NOW
        high_s = self.tasks[0].arrived_s + self.timeout_s if self.tasks else NEVER
        return cast(LowPriority, self.options.low).due_s(
            self._low[0].arrived_s,
            high_s,
            self.num_rows - self._low_rows,
            self._low_rows,
            self._max_batch_rows,
        )

    @property
    def is_low(self) -> bool:
        """Whether tasks wait, and all are of low priority."""
        return bool(self._low) and not self.tasks

    @property
    def aged_s(self) -> float:
        """When the oldest task of low priority overtakes others; infinite means never."""
        low = self.options.low
        if low is None or low.ageing_s is None or not self._low:
            return NEVER
        return self._low[0].arrived_s + low.ageing_s

    @property
    def oldest_s(self) -> float:
        """When the task that has waited longest arrived; infinite if none waits."""
        high_s = self.tasks[0].arrived_s if self.tasks else NEVER
        return min(high_s, self._low[0].arrived_s) if self._low else high_s

    def retry_after_s(self, num_rows: int = 1) -> float:
        """Returns in how many seconds ``num_rows`` more rows probably fit."""
        excess = max(1, self.num_rows + num_rows - self._max_rows)
        # Room comes by whole batches.
        batches = math.ceil(excess / self._max_batch_rows)
        return max(0.001, batches * self._max_batch_rows * self.s_per_row)

    # -- emptying -----------------------------------------------------------------

    def take(
        self, now_s: float, max_rows: int | None = None
    ) -> tuple[list[TaskT], int, float]:
        """Takes the next batch, due or not; the taker ends its tasks.

        Tasks that were cancelled or have passed their deadline are ended instead.
        Within each class of priority, tasks are taken in arrival order.

        Args:
            now_s: The time now.
            max_rows: A tighter limit than the options', >= 1.

        Returns:
            The tasks, possibly none; the number of their rows; and the arrival time of
            the task that had waited longest in the queue.

        """
        room = self._max_batch_rows
        if max_rows is not None and max_rows < room:
            room = max_rows
        tasks = self.tasks
        num = len(tasks)
        if num == self.num_rows and now_s < self.next_deadline_s and not self.num_begun:
            # The usual case comes first, because every step here shows in benchmarks:
            # tasks of one row each, all in time and of high priority, none partly
            # taken. (The scheduler of ``batching`` takes a single task like this
            # itself.)
            batch = tasks if num <= room else tasks[:room]
            for task in batch:
                if task.cancel.error is not None:
                    break
            else:
                if num <= room:
                    self.tasks = []
                    self.num_rows = 0
                    self.next_deadline_s = NEVER
                    return tasks, num, tasks[0].arrived_s if tasks else NEVER
                del tasks[:room]
                self.num_rows = num - room
                return batch, room, batch[0].arrived_s
        batch = []
        dead: list[TaskT] = []
        oldest_s = self.oldest_s
        if self._low:
            left = self._take_classes(batch, room, now_s, dead)
        else:
            left = self._pop_into(batch, tasks, room, now_s, dead)
            self.num_rows -= room - left
        num_rows = room - left
        if self.num_begun:
            num_ended, lost = finish_splits(batch)
            self.num_begun -= num_ended
            num_rows -= lost
        if not self.tasks and not self._low:
            self.next_deadline_s = NEVER
        if dead:
            self.end_dead(dead)
        return batch, num_rows, oldest_s

    def form(self, now_s: float) -> tuple[list[TaskT], int, float, bool]:
        """Takes the next batch in the cases where that takes more than ``take``.

        Returns:
            As ``take``, and whether it runs again.

        """
        if self.retries:
            again, oldest_s = self.retries.popleft()
            self.set_plain()
            living = self._living(again, now_s)
            return living, sum([task.num_rows for task in living]), oldest_s, True
        window = self.window
        if window is not None and (
            window.ranks_low or not (self._low or self.num_begun or self._has_large)
        ):
            taken = self._take_chosen(window, now_s)
        elif self.is_failing:
            self.drop_dead(now_s)
            waiting = self.tasks or self._low
            taken = self.take(now_s, waiting[0].num_rows if waiting else None)
        else:
            taken = self.take(now_s, self.room_of and self.room_of(self.num_rows))
            if not taken[0] and self.num_rows:
                taken = self.take(now_s)  # its first task needs more than that
        return (*taken, False)

    def set_plain(self) -> None:
        """Notes whether :meth:`take` forms the next batch, or :meth:`form` has to."""
        self.is_plain = not (
            self.retries or self.is_failing or self.window or self.room_of
        )

    def run_again(self, tasks: list[TaskT], oldest_s: float) -> None:
        """Has tasks of a batch that failed computed once more, by themselves."""
        self.stats.num_retries += 1
        self.is_plain = False
        self.retries.append((tasks, oldest_s))

    def _living(self, tasks: Sequence[TaskT], now_s: float) -> list[TaskT]:
        """Returns those tasks that somebody still waits for, and ends the others."""
        living = []
        for task in tasks:
            error = task.cancel.error
            if error is None and _deadline_of(task) <= now_s:
                error = self._late_error("passed before a retry")
            if error is None:
                living.append(task)
            else:
                task.on_done(error)
        return living

    def _take_chosen(
        self, window: Window, now_s: float
    ) -> tuple[list[TaskT], int, float]:
        """Takes what a window chooses, or only the first of it while batches fail."""
        self.drop_dead(now_s)
        chosen, late = window.choose([*self.tasks, *self._low], now_s)
        batch = list(chosen[:1] if self.is_failing else chosen)
        gone = {id(task) for task in (*batch, *late)}
        if gone:
            self._keep(lambda task: id(task) not in gone)
        self.stats.num_expired += len(late)
        for task in late:
            self._end(task, self._late_error("would have passed while computing"))
        num_rows = sum([task.num_rows for task in batch])
        return batch, num_rows, min((t.arrived_s for t in batch), default=NEVER)

    @property
    def _has_large(self) -> bool:
        return any(task.num_rows > self._max_batch_rows for task in self.tasks)

    def drop_dead(self, now_s: float) -> int:
        """Ends what is cancelled or expired, wherever it waits; returns how many.

        Looks at every task.
        """
        dead: list[TaskT] = []

        def lives(task: TaskT) -> bool:
            deadline_s = task.deadline_s
            if task.cancel.error is None and (deadline_s is None or deadline_s > now_s):
                return True
            dead.append(task)
            return False

        self._keep(lives)
        self.end_dead(dead)
        return len(dead)

    def close(self) -> None:
        """Refuses new tasks; those that wait are due at once. Idempotent."""
        self._closed = True
        self._max_rows = -1

    def fail_all(self, error: ServingError) -> None:
        """Ends every waiting task with ``error``."""
        doomed = [*self.tasks, *self._low]
        self._keep(lambda task: False)
        for task in doomed:
            self._end(task, error)

    def _take_classes(
        self, batch: list[TaskT], room: int, now_s: float, dead: list[TaskT]
    ) -> int:
        """Fills ``batch`` from both classes; returns the room left in it."""
        low = cast(LowPriority, self.options.low)
        start = room
        self._num_high_first += 1
        if (
            low.ageing_s is not None
            and now_s - self._low[0].arrived_s >= low.ageing_s
            and (self._num_high_first >= _AGED_EVERY or not self.tasks)
        ):
            room = self._pop_low(batch, room, now_s, dead)
            if batch:
                self._num_high_first = 0
                if low.mixing is Mixing.ISOLATE:
                    return room
        before = room
        room = self._pop_into(batch, self.tasks, room, now_s, dead)
        self.num_rows -= before - room
        if not batch:
            return self._pop_low(batch, room, now_s, dead)
        if low.mixing is Mixing.ISOLATE or self.tasks or not self._low:
            return room
        if low.mixing is Mixing.PAD_TO_ALLOWED:
            taken = start - room
            spare = min(self.options.next_allowed(taken) - taken, room)
            return room - spare + self._pop_low(batch, spare, now_s, dead)
        return self._pop_low(batch, room, now_s, dead)

    def _pop_low(
        self, batch: list[TaskT], room: int, now_s: float, dead: list[TaskT]
    ) -> int:
        left = self._pop_into(batch, self._low, room, now_s, dead, True)
        self.num_rows -= room - left
        self._low_rows -= room - left
        return left

    def _pop_into(
        self,
        batch: list[TaskT],
        tasks: list[TaskT],
        room: int,
        now_s: float,
        dead: list[TaskT],
        low: bool = False,
    ) -> int:
        """Moves tasks from the left into ``batch``; returns the room left in it.

        Subtracts the rows of dead tasks from the counts; the caller subtracts those of
        the batch.
        """
        num_seen = 0
        while num_seen < len(tasks):
            task = tasks[num_seen]
            deadline_s = task.deadline_s
            rows = task.num_rows
            if task.cancel.error is not None or (
                deadline_s is not None and deadline_s <= now_s
            ):
                self.num_rows -= rows
                if low:
                    self._low_rows -= rows
                dead.append(task)
            elif rows <= room:
                room -= rows
                batch.append(task)
            else:
                if room and self.options.splits:
                    part = self._split_at(tasks, num_seen, room)
                    if part is None:
                        continue  # its error is set: it leaves as dead
                    batch.append(part)
                    room = 0
                break
            num_seen += 1
        del tasks[:num_seen]
        return room

    def _split_at(self, tasks: list[TaskT], index: int, rows: int) -> TaskT | None:
        task: object = tasks[index]
        if not isinstance(task, SplitTask):
            assert self._split is not None
            assert self._join is not None
            task = SplitTask(tasks[index], self._split, self._join)
            tasks[index] = cast(TaskT, task)
            self.num_begun += 1
            self.stats.num_split += 1
        return cast("TaskT | None", task.take(rows))

    def _keep(self, wanted: Callable[[TaskT], bool]) -> None:
        """Removes tasks that are not ``wanted``, without ending them."""
        self.num_rows = self._low_rows = 0
        self.next_deadline_s = NEVER
        for tasks in (self.tasks, self._low):
            tasks[:] = [task for task in tasks if wanted(task)]
            for task in tasks:
                self.num_rows += task.num_rows
                self.next_deadline_s = min(self.next_deadline_s, _deadline_of(task))
        self._low_rows = sum(task.num_rows for task in self._low)

    def end_dead(self, dead: Sequence[TaskT]) -> None:
        """Ends and counts tasks that were cancelled or whose deadline passed."""
        for task in dead:
            error = task.cancel.error
            if error is None:
                self.stats.num_expired += 1
                error = self._late_error("passed while waiting in the batch queue")
            else:
                self.stats.num_cancelled += 1
            self._end(task, error)

    def _late_error(self, what: str) -> ServingError:
        return DeadlineExceeded(f"{self.options.name}: deadline {what}")

    def _end(self, task: TaskT, error: ServingError) -> None:
        if isinstance(task, SplitTask):
            self.num_begun -= 1
        task.on_done(error)

    @property
    def is_idle(self) -> bool:
        """Whether none of its tasks waits or runs."""
        return not (self.num_rows or self.num_in_flight or self.retries)

    def __repr__(self) -> str:
        return f"<BatchQueue {self.options.name!r}: {len(self)} tasks>"


def _deadline_of(task: Task) -> float:
    return NEVER if task.deadline_s is None else task.deadline_s
