"""The thread-free batch queue."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.batching.fakes import FakeTask, JoinedOutcomes, split_task
from tfs.core.batch.batch_queue import BatchQueue
from tfs.core.batch.batch_queue_options import BatchQueueOptions, LowPriority, Mixing
from tfs.core.errors import (
    Cancelled,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    ServingError,
    Unavailable,
)


def queue_of(**options: Any) -> BatchQueue[FakeTask]:
    made = BatchQueueOptions(**{"name": "q", "max_batch_rows": 10, **options})
    return BatchQueue(made, split=split_task, join=JoinedOutcomes)


def put_all(
    queue: BatchQueue[FakeTask], *rows: int, now_s: float = 0.0, low: bool = False
) -> list[FakeTask]:
    tasks = [FakeTask(n, name=f"{'low' if low else 'high'}{n}") for n in rows]
    for task in tasks:
        assert queue.put(task, now_s, low=low)
    return tasks


def sizes(queue: BatchQueue[FakeTask], now_s: float = 0.0) -> list[int]:
    tasks, num_rows, _ = queue.take(now_s)
    assert num_rows == sum(task.num_rows for task in tasks)
    return [task.num_rows for task in tasks]


def test_a_batch_is_a_prefix_of_the_arrivals() -> None:
    """Tasks are taken in order until the next does not fit.

    shared_batch_scheduler_test: ObeyBatchSizeConstraint.
    """
    queue = queue_of()
    put_all(queue, 3, 5, 3, 1, 6)
    assert [sizes(queue), sizes(queue), sizes(queue)] == [[3, 5], [3, 1, 6], []]


def test_splitting_fills_every_batch() -> None:
    """With splitting a batch is full while there are rows.

    shared_batch_scheduler_test: ObeyBatchSizeConstraint, large batch splitting.
    """
    queue = queue_of(splits=True)
    put_all(queue, 3, 5, 3, 1, 6, 1)
    assert [sizes(queue), sizes(queue)] == [[3, 5, 2], [1, 1, 6, 1]]


def test_a_task_may_be_larger_than_a_batch_if_it_may_be_split() -> None:
    """A split task ends once, after all its parts, with what they gave, in order."""
    queue = queue_of(splits=True)
    (task,) = put_all(queue, 25)
    parts = [queue.take(0.0)[0][0] for _ in range(3)]
    assert [part.name for part in parts] == [
        "high25[0:10]",
        "high25[10:20]",
        "high25[20:25]",
    ]
    assert queue.num_rows == 0
    for part in (parts[2], parts[0]):
        part.on_done(part.name)
        assert task.is_waiting
    parts[1].on_done(parts[1].name)
    assert task.outcome == [part.name for part in parts]


def test_parts_arrived_when_their_task_did() -> None:
    """Whoever takes a batch may ask each of its tasks, parts of others included."""
    queue = queue_of(splits=True)
    put_all(queue, 25, now_s=7.0)
    parts = [queue.take(8.0)[0][0] for _ in range(3)]
    assert [part.arrived_s for part in parts] == [7.0] * 3


def test_a_failed_part_takes_the_rest_with_it() -> None:
    """Once a part failed, rows that wait are not computed; the first error is told.

    incremental_barrier_test: RunAfterNumClosuresOneNowTwoLater; threadsafe_status_test:
    DefaultOk (of the test before), Update.
    """
    queue = queue_of(splits=True)
    (task,) = put_all(queue, 25)
    (first,) = queue.take(0.0)[0]
    (second,) = queue.take(0.0)[0]
    first.on_done(Internal("first"))
    assert task.is_waiting
    assert sizes(queue) == []
    second.on_done(Internal("second"))
    assert task.error.message == "first"


def test_a_task_that_cannot_be_split_fails_alone() -> None:
    """An error of the split function is the task's; its neighbours go on.

    batching_session_test: BatchHandlesSplitError.
    """

    def failing(task: FakeTask, *_: object) -> FakeTask:
        raise ValueError("no")

    queue: BatchQueue[FakeTask] = BatchQueue(
        BatchQueueOptions(max_batch_rows=4, splits=True),
        split=failing,
        join=JoinedOutcomes,
    )
    put_all(queue, 3)
    (bad,) = put_all(queue, 2)
    (after,) = put_all(queue, 1)
    assert sizes(queue) == [3, 1]
    assert (bad.error.code, after.is_waiting) == (Internal.code, True)
    assert queue.num_rows == 0


def test_a_task_whose_last_part_cannot_be_split_ends_when_the_others_did() -> None:
    """Failing to make the last part loses no row of the count."""

    def failing_late(
        task: FakeTask, start: int, stop: int, on_done: Callable[[Any], None]
    ) -> FakeTask:
        if start:
            raise ValueError("no")
        return split_task(task, start, stop, on_done)

    queue: BatchQueue[FakeTask] = BatchQueue(
        BatchQueueOptions(max_batch_rows=4, splits=True),
        split=failing_late,
        join=JoinedOutcomes,
    )
    (task,) = put_all(queue, 6)
    (part,) = queue.take(0.0)[0]
    assert sizes(queue) == []
    assert task.is_waiting
    part.on_done("done")
    assert task.error.code is Internal.code
    assert (queue.num_rows, len(queue)) == (0, 0)


@pytest.mark.parametrize("fails", ["add", "whole"])
def test_an_outcome_that_cannot_be_joined_is_an_error(fails: str) -> None:
    """A join that raises, at a part or at the end, ends the task once with INTERNAL."""

    class Failing(JoinedOutcomes):
        def add(self, start: int, outcome: Any) -> None:
            if fails == "add":
                raise ValueError("no")

        def whole(self) -> Any:
            raise ValueError("no")

    queue: BatchQueue[FakeTask] = BatchQueue(
        BatchQueueOptions(max_batch_rows=1, splits=True), split=split_task, join=Failing
    )
    (task,) = put_all(queue, 3)
    parts = [queue.take(0.0)[0][0] for _ in range(2)]
    for part in parts:
        part.on_done("done")
    for left, *_ in iter(lambda: queue.take(0.0)[0], []):
        left.on_done("done")
    assert task.error.code is Internal.code


def test_a_task_without_rows_is_invalid() -> None:
    """A task without rows would never fill a batch."""
    queue = queue_of()
    task = FakeTask(0)
    assert not queue.put(task, 0.0)
    assert isinstance(task.error, InvalidArgument)


def test_a_full_queue_refuses_with_a_hint() -> None:
    """UNAVAILABLE tells when the rows in the way are probably served."""
    queue = queue_of(max_rows=20)
    put_all(queue, 10, 10)
    queue.s_per_row = 0.02
    task = FakeTask(5)
    assert not queue.put(task, 0.0)
    assert isinstance(task.error, Unavailable)
    assert "to which this task was submitted is full" in task.error.message
    assert task.error.retry_after_s == pytest.approx(0.2)
    assert queue.stats.num_refused == 1


def test_admission_is_all_or_nothing() -> None:
    """A task that fits in part does not enter in part."""
    queue = queue_of(max_rows=20, splits=True)
    put_all(queue, 15)
    task = FakeTask(6)
    assert not queue.put(task, 0.0)
    assert queue.num_rows == 15


def test_dead_tasks_make_room_for_new_ones() -> None:
    """A queue is not full if nobody waits for the tasks in it."""
    queue = queue_of(max_rows=20)
    first, second = put_all(queue, 10, 10)
    first.cancel.cancel(Cancelled("gone"))
    put_all(queue, 5)
    assert isinstance(first.error, Cancelled)
    assert second.is_waiting
    assert queue.num_rows == 15


def test_the_expired_and_the_cancelled_leave_before_compute() -> None:
    """Each of them ends with its own reason; the others fill the batch."""
    queue = queue_of()
    late = FakeTask(3, deadline_s=5.0)
    gone = FakeTask(4)
    good = FakeTask(6, deadline_s=5.5)
    for task in (late, gone, good):
        queue.put(task, 0.0)
    gone.cancel.cancel(Cancelled("gone"))
    assert sizes(queue, now_s=5.0) == [6]
    assert isinstance(late.error, DeadlineExceeded)
    assert gone.error.message == "gone"
    assert (queue.stats.num_expired, queue.stats.num_cancelled) == (1, 1)


def test_a_sweep_ends_the_dead_wherever_they_wait() -> None:
    """drop_dead needs no batch, and finds the next deadline."""
    queue = queue_of()
    tasks = [FakeTask(1, deadline_s=when_s) for when_s in (9.0, 3.0, 7.0)]
    for task in tasks:
        queue.put(task, 0.0)
    assert queue.next_deadline_s == 3.0
    assert queue.drop_dead(3.0) == 1
    assert [task.is_waiting for task in tasks] == [True, False, True]
    assert queue.next_deadline_s == 7.0


def test_failing_all_empties_the_queue() -> None:
    """fail_all ends what waits, in both classes, once."""
    queue = queue_of()
    tasks = put_all(queue, 1, 2) + put_all(queue, 3, low=True)
    queue.fail_all(Unavailable("over"))
    assert [task.error.message for task in tasks] == ["over"] * 3
    assert (queue.num_rows, len(queue), queue.due_s) == (0, 0, math.inf)


def test_a_failed_split_task_can_be_followed_by_another() -> None:
    """fail_all on a half-taken task leaves its running part to end it."""
    queue = queue_of(splits=True)
    (task,) = put_all(queue, 15)
    (part,) = queue.take(0.0)[0]
    queue.fail_all(Unavailable("over"))
    assert task.is_waiting
    part.on_done("done")
    assert task.error.message == "over"
    put_all(queue, 12)
    assert sizes(queue) == [10]


@pytest.mark.parametrize(
    ("mixing", "batches"),
    [
        (Mixing.PAD_TO_MAX, [[1, 3, 3, 3], [3]]),
        (Mixing.MERGE, [[1, 3, 3, 3], [3]]),
        (Mixing.PAD_TO_ALLOWED, [[1, 3, 3], [3, 3]]),
        (Mixing.ISOLATE, [[1, 3], [3, 3, 3]]),
    ],
)
def test_low_priority_fills_batches_as_the_mixing_says(
    mixing: Mixing, batches: list[list[int]]
) -> None:
    """High priority comes first; what is left is for low priority, or not.

    SharedBatchSchedulerPriorityPolicyTest: HighPriorityBatchPaddedUptoMaxBatchSize,
    ...UptoMaxAvailableBatchSize, ...UptoNextAllowedBatchSize,
    ...NotPaddedWithLowPriorityTasks.
    """
    queue = queue_of(
        allowed_rows=(2, 8, 10), low=LowPriority(mixing=mixing, timeout_s=1.0)
    )
    put_all(queue, 3, 3, 3, low=True)
    put_all(queue, 1, 3)
    assert [sizes(queue), sizes(queue)] == batches


def test_without_allowed_sizes_nothing_is_padded_to_the_next() -> None:
    """The batch's own size is its next allowed one.

    SharedBatchSchedulerPriorityPolicyTest:
    HighPriorityBatchNotPaddedWhenAllowedBatchSizeMissing.
    """
    queue = queue_of(low=LowPriority(mixing=Mixing.PAD_TO_ALLOWED))
    put_all(queue, 3, low=True)
    put_all(queue, 1, 3)
    assert [sizes(queue), sizes(queue)] == [[1, 3], [3]]


def test_low_priority_makes_no_batch_due_while_others_wait() -> None:
    """Except when merged, where the earliest task of either class counts.

    SharedBatchSchedulerPriorityTest: LowPriorityTaskOnlyAtMaxBatchSize, ...AtTimeout;
    PriorityMerged: MixedPriorityBatchAfterLowPriorityTimeout, ...CompleteBatch.
    """
    for mixing, due_s in ((Mixing.PAD_TO_MAX, 12.0), (Mixing.MERGE, 1.0)):
        queue = queue_of(
            timeout_s=10.0, low=LowPriority(mixing=mixing, timeout_s=1.0, ageing_s=99.0)
        )
        put_all(queue, 2, now_s=0.0, low=True)
        assert queue.due_s == 1.0
        put_all(queue, 2, now_s=2.0)
        assert queue.due_s == due_s
        put_all(queue, 6, now_s=3.0, low=True)
        full = queue.due_s == -math.inf
        assert full is (mixing is Mixing.MERGE)
    queue = queue_of(timeout_s=10.0, low=LowPriority(timeout_s=10.0))
    put_all(queue, 10, low=True)
    assert queue.due_s == -math.inf


def test_low_priority_that_waited_long_goes_first() -> None:
    """Ageing: nothing starves behind a stream of high priority."""
    queue = queue_of(low=LowPriority(ageing_s=1.0))
    put_all(queue, 4, now_s=0.0, low=True)
    put_all(queue, 10, now_s=0.5)
    assert sizes(queue, 0.9) == [10]
    put_all(queue, 10, now_s=0.95)
    assert sizes(queue, 1.0) == [4]
    assert sizes(queue, 1.0) == [10]


@pytest.mark.parametrize("mixing", Mixing)
def test_more_low_priority_than_is_computed_does_not_starve_high(
    mixing: Mixing,
) -> None:
    """While high priority waits, aged tasks begin every fourth batch and no more.

    Otherwise a stream of them keeps all of them aged, and high priority waits for all.
    """
    queue = queue_of(max_rows=1000, low=LowPriority(ageing_s=1.0, mixing=mixing))
    put_all(queue, *[10] * 50, low=True)
    put_all(queue, *[9] * 9)
    taken = [sizes(queue, 100.0)[0] for _ in range(12)]
    assert taken == [10, 9, 9, 9, 10, 9, 9, 9, 10, 9, 9, 9]
    assert sizes(queue, 100.0) == sizes(queue, 100.0) == [10]  # nobody else waits


def test_an_aged_task_is_alone_where_classes_are_isolated() -> None:
    """ISOLATE holds for aged tasks too."""
    queue = queue_of(low=LowPriority(ageing_s=1.0, mixing=Mixing.ISOLATE))
    put_all(queue, 2, low=True)
    put_all(queue, 2)
    assert [sizes(queue, 1.0), sizes(queue, 1.0)] == [[2], [2]]


def test_low_priority_has_a_limit_of_its_own() -> None:
    """The small class cannot fill the queue.

    SharedBatchSchedulerPriorityTest: InvalidLowPriorityTaskWithQueueFull.
    """
    queue = queue_of(low=LowPriority(max_rows=20))
    put_all(queue, 10, 10, low=True)
    task = FakeTask(1)
    assert not queue.put(task, 0.0, low=True)
    assert isinstance(task.error, Unavailable)
    put_all(queue, 10)


def test_without_a_low_class_priorities_are_ignored() -> None:
    """A queue without a low class treats all tasks alike
    (SharedBatchSchedulerPriorityTest:
    CallbackWithTaskVectorOkWithPriorityQueueDisabledWithPrioritySet).
    """
    queue = queue_of(low=None)
    put_all(queue, 1, 3, low=True)
    put_all(queue, 5)
    assert sizes(queue) == [1, 3, 5]


def test_high_priority_evicts_the_newest_of_low_priority() -> None:
    """Only as many tasks as necessary are evicted, with UNAVAILABLE and a hint.

    SharedBatchSchedulerPriorityAwareTest: EvictionOfLowestPriorityTasks,
    EvictionOfMultipleTasksSameCriticality, EvictionTasksSumToMoreThanRequired.
    """
    queue = queue_of(max_rows=10)
    low = put_all(queue, 3, 3, 3, low=True)
    put_all(queue, 5)
    assert [task.is_waiting for task in low] == [True, False, False]
    assert "evicted" in low[1].error.message
    assert low[1].error.retry_after_s is not None
    assert (queue.num_rows, queue.stats.num_evicted) == (8, 2)


def test_nobody_is_evicted_in_vain() -> None:
    """If evicting all of low priority would not make enough room, none is evicted.

    SharedBatchSchedulerPriorityAwareTest: EvictionGreedyInsufficientMultipleTasks,
    where TensorFlow evicts and refuses all the same; and equal priority never evicts.
    """
    queue = queue_of(max_rows=10)
    put_all(queue, 8)
    low = put_all(queue, 2, low=True)
    assert not queue.put(FakeTask(3), 0.0)
    assert not queue.put(FakeTask(1), 0.0, low=True)
    assert low[0].is_waiting


def test_callbacks_may_put_new_tasks_in() -> None:
    """The queue is consistent whenever it ends a task."""
    queue = queue_of(max_rows=10)
    again = FakeTask(2, name="again")

    def resubmit(outcome: object) -> None:
        assert isinstance(outcome, ServingError)
        queue.put(again, 9.0)

    queue.put(FakeTask(9, deadline_s=5.0, on_done=resubmit), 0.0)
    assert sizes(queue, 9.0) == []
    assert sizes(queue, 9.0) == [2]


class Middle:
    """A window that gives up the first task, takes two, and leaves the rest."""

    ranks_low = True

    def __init__(self) -> None:
        self.came: list[int] = []

    def note_arrival(self, num_rows: int, now_s: float) -> None:
        self.came.append(num_rows)

    def choose(self, tasks: Any, now_s: float) -> tuple[Any, Any]:
        return tasks[1:3], tasks[:1]

    def observe(self, tasks: Any, device_s: float) -> bool:
        return True


def test_a_window_chooses_and_gives_up() -> None:
    """What it chooses is taken, what it gives up ends as expired, and the rest waits."""
    window = Middle()
    queue: BatchQueue[FakeTask] = BatchQueue(BatchQueueOptions(), window=window)
    tasks = put_all(queue, 1, 2, 3)
    tasks[2].deadline_s = 9.0
    tasks += [FakeTask(4, deadline_s=8.0)]
    assert queue.put(tasks[3], 0.0)
    taken, num_rows, _, is_retry = queue.form(1.0)
    assert (taken, num_rows, is_retry) == (tasks[1:3], 5, False)
    assert isinstance(tasks[0].error, DeadlineExceeded)
    assert (queue.num_rows, queue.next_deadline_s, queue.stats.num_expired) == (
        4,
        8.0,
        1,
    )
    assert window.came == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_batch_rows": 0}, "max_batch_rows must be positive; was 0"),
        ({"max_rows": 0}, "max_rows must be positive; was 0"),
        ({"timeout_s": -1}, "timeout_s must be non-negative; was -1"),
        ({"max_task_rows": 11}, "allow splitting"),
        ({"allowed_rows": (8, 4, 10)}, "must be monotonically increasing"),
        ({"allowed_rows": (0, 10)}, "must be positive"),
        (
            {"allowed_rows": (4, 8)},
            "Last entry in allowed_batch_sizes must match max_batch_size; last entry "
            "was 8; expected 10",
        ),
    ],
)
def test_options_that_cannot_work_are_refused(
    options: dict[str, Any], message: str
) -> None:
    """Options that no batch could satisfy are refused when they are made
    (batching_session_test: UnsortedAllowedBatchSizesRejected,
    FinalAllowedBatchSizeLargerThanMaxBatchSizeRejected).
    """
    with pytest.raises(InvalidArgument, match=message):
        BatchQueueOptions(**{"max_batch_rows": 10, **options})


def test_splitting_needs_the_functions() -> None:
    """A queue that may split is made with what splits."""
    with pytest.raises(InvalidArgument, match="needs split and join"):
        BatchQueue[FakeTask](BatchQueueOptions(splits=True))


@pytest.mark.parametrize("options", [{}, {"splits": True}, {"max_rows": 12}])
@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("num_rows", [1, 3, 11, 0])
def test_many_tasks_are_put_as_each_would_be(
    options: dict[str, Any], is_closed: bool, num_rows: int
) -> None:
    """put_all admits, refuses and expires the same tasks as one put for each."""
    seen = []
    for together in (True, False):
        queue = queue_of(**options)
        put_all(queue, 2)
        if is_closed:
            queue.close()
        tasks = [FakeTask(num_rows, deadline_s=9.0 - n) for n in range(5)]
        if together:
            all_wait = queue.put_all(tasks, 1.0)
        else:
            waiting = [queue.put(task, 1.0) for task in tasks]
            all_wait = all(waiting)
        seen.append(
            (
                all_wait,
                queue.num_rows,
                queue.next_deadline_s,
                queue.stats.num_refused,
                [[str(outcome) for outcome in task.outcomes] for task in tasks],
                [task.arrived_s for task in tasks if task.is_waiting],
                [sizes(queue) for _ in range(6)],
            )
        )
    assert seen[0] == seen[1]
