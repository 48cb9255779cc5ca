"""Two classes of priority, as the scheduler runs them."""

from __future__ import annotations

from typing import Any

import pytest

from batching.batching_options import SchedulerOptions
from batching.shared_scheduler import SharedBatchScheduler
from tests.batching.fakes import FakeTask, JoinedOutcomes, PuppetRunner, split_task
from tfs.core.batch.batch_queue import BatchQueue
from tfs.core.batch.batch_queue_options import BatchQueueOptions, LowPriority, Mixing
from tfs.core.errors import DeadlineExceeded, InvalidArgument, Unavailable
from tfs.testing.fake_clock import FakeClock

START_S = 1000.0


class Fixture:
    """One queue of batches of ten on a fake clock; both classes wait two seconds."""

    def __init__(self, mixing: Mixing = Mixing.MERGE, **options: Any) -> None:
        self.clock = FakeClock(START_S)
        self.scheduler = SharedBatchScheduler(SchedulerOptions(), self.clock)
        self.runner = PuppetRunner()
        low = LowPriority(mixing=mixing, timeout_s=2.0, ageing_s=None)
        options = {"max_batch_rows": 10, "timeout_s": 2.0, "low": low, **options}
        self.queue = self.scheduler.add_queue(
            self.runner, BatchQueueOptions(**options), split=split_task,
            join=JoinedOutcomes,
        )  # fmt: skip

    def high(self, *rows: int) -> list[FakeTask]:
        return self._submit(rows, low=False)

    def low(self, *rows: int) -> list[FakeTask]:
        return self._submit(rows, low=True)

    def _submit(self, rows: tuple[int, ...], *, low: bool) -> list[FakeTask]:
        tasks = [FakeTask(n, name=f"{'low' if low else 'high'}{n}") for n in rows]
        for task in tasks:
            self.scheduler.submit(self.queue, task, low)
        self.scheduler.step(self.clock.now())
        return tasks

    def wait(self, duration_s: float) -> None:
        self.clock.advance(duration_s)
        self.scheduler.step(self.clock.now())

    def batches(self) -> list[list[str]]:
        """Ends what runs, until nothing more starts; returns all batches so far."""
        while self.runner.running:
            self.runner.finish()
        return self.runner.names


@pytest.mark.parametrize("low", [False, True])
def test_one_class_alone_waits_for_its_timeout(low: bool) -> None:
    """PriorityMerged: LowPriorityTimeout, HighPriorityTimeout;
    SharedBatchSchedulerPriorityAwareTest: BasicScheduling, SchedulingAtTimeout.
    """
    at = Fixture()
    (at.low if low else at.high)(1, 3)
    at.wait(1.9)
    assert at.batches() == []
    at.wait(0.1)
    prefix = "low" if low else "high"
    assert at.batches() == [[f"{prefix}1", f"{prefix}3"]]


@pytest.mark.parametrize("low", [False, True])
def test_a_full_batch_of_one_class_goes_at_once(low: bool) -> None:
    """PriorityMerged: LowPriorityCompleteBatch, HighPriorityCompleteBatch;
    SharedBatchSchedulerPriorityAwareTest: SchedulingAtMaxBatchSize;
    adaptive_shared_batch_scheduler_test: FullBatches.
    """
    at = Fixture()
    (at.low if low else at.high)(3, 7)
    assert [len(batch) for batch in at.batches()] == [2]


def test_merged_classes_go_at_the_earliest_timeout_of_either() -> None:
    """High priority comes first in the batch whoever came first.

    PriorityMerged: MixedPriorityBatchAfterHighPriorityTimeout,
    MixedPriorityBatchAfterLowPriorityTimeout; PriorityAware: MixedPriorityBatching.
    """
    for high_first in (True, False):
        at = Fixture()
        (at.high if high_first else at.low)(1)
        at.wait(1.0)
        (at.low if high_first else at.high)(2)
        at.wait(0.9)
        assert at.batches() == []
        at.wait(0.1)
        assert at.batches() == [["high1", "low2"] if high_first else ["high2", "low1"]]


def test_merged_classes_fill_a_batch_together() -> None:
    """Where classes are merged, tasks of both make up a batch (PriorityMerged:
    MixedPriorityCompleteBatch).
    """
    at = Fixture()
    at.low(2, 3)
    at.high(5)
    assert at.batches() == [["high5", "low2", "low3"]]


def test_under_high_load_high_priority_goes_first() -> None:
    """Low priority gets what room is left.

    PriorityAware: MixedPriorityBatchingHighLoad, MixedPriorityBatchingTimeout.
    """
    at = Fixture()
    at.high(10)  # runs
    at.low(4)
    at.wait(5.0)  # long past its timeout
    at.high(6, 9)
    assert at.batches() == [["high10"], ["high6"], ["high9"], ["low4"]]


def test_a_queue_limit_counts_rows_of_both_classes() -> None:
    """Rows of low priority take room in the queue like any other (PriorityAware:
    QueueSizeLimit, TaskLargerThanQueueDepth, NumEnqueuedTasksAndSchedulingCapacity).
    """
    at = Fixture(max_rows=12, timeout_s=100.0, max_batch_rows=12)
    at.low(4)
    at.high(5)
    assert (at.queue.num_rows, len(at.queue)) == (9, 2)
    (refused,) = at.low(4)
    assert isinstance(refused.error, Unavailable)
    (admitted,) = at.high(3)
    assert admitted.is_waiting or admitted.name in at.batches()[0]


def test_a_task_that_never_fits_is_invalid() -> None:
    """PriorityAware: InvalidTaskSize; there a task larger than the queue is
    UNAVAILABLE, which would make its caller try again for ever.
    """
    at = Fixture()
    for (task,) in (at.high(11), at.low(11)):
        assert isinstance(task.error, InvalidArgument)
        assert "Task size 11 is larger than maximum input batch size 10" in str(
            task.error
        )


def test_large_tasks_are_split_over_batches() -> None:
    """PriorityAware: LargeBatchSplitting, BatchSplittingAcrossTwoTasks and its form
    with mixed priorities; PriorityMerged: MixedPriorityBatchSplitting.
    """
    at = Fixture(splits=True)
    at.high(20)
    assert at.batches() == [["high20[0:10]"], ["high20[10:20]"]]
    at = Fixture(splits=True)
    at.high(6, 6)
    at.wait(2.0)
    assert at.batches() == [["high6", "high6[0:4]"], ["high6[4:6]"]]
    at = Fixture(splits=True)
    at.low(6)
    at.high(6)
    at.wait(2.0)
    assert at.batches() == [["high6", "low6[0:4]"], ["low6[4:6]"]]


def test_a_merged_queue_takes_any_valid_options() -> None:
    """PriorityAware: ValidOptions, InvalidOptions; what excludes what is checked where
    options are made.
    """
    for mixing in Mixing:
        at = Fixture(mixing, allowed_rows=(4, 10))
        at.high(1)
        at.low(1)
        at.wait(4.0)
        assert sum(map(len, at.batches())) == 2


class TwoQueues:
    """Two queues of batches of one on one device that is busy with something else."""

    def __init__(self) -> None:
        self.clock = FakeClock(START_S)
        self.scheduler = SharedBatchScheduler(SchedulerOptions(), self.clock)
        self.runner = PuppetRunner()
        low = LowPriority(ageing_s=1.0)
        self.first, self.second, self.other = (
            self.scheduler.add_queue(
                self.runner, BatchQueueOptions(max_batch_rows=1, low=low)
            )
            for _ in range(3)
        )
        self.scheduler.submit(self.other, FakeTask(name="other"))
        self.scheduler.step(self.clock.now())

    def submit(self, queue: BatchQueue[FakeTask], name: str) -> None:
        low = name.startswith("low")
        self.scheduler.submit(queue, FakeTask(name=name), low)
        self.scheduler.step(self.clock.now())

    def order(self) -> list[str]:
        while self.runner.running:
            self.runner.finish()
        return [name for (name,) in self.runner.names[1:]]


def test_a_queue_of_low_priority_alone_gives_way_to_other_queues() -> None:
    """Copies for a canary do not delay the requests of any model."""
    at = TwoQueues()
    at.submit(at.first, "low1")
    at.submit(at.first, "low2")
    at.submit(at.second, "high1")
    at.submit(at.second, "high2")
    assert at.order() == ["high1", "high2", "low1", "low2"]


def test_a_queue_that_gave_way_for_its_ageing_time_goes_first() -> None:
    """Nothing starves; the rest of it is young and waits again."""
    at = TwoQueues()
    at.submit(at.first, "low1")
    at.submit(at.second, "high1")
    at.clock.advance(1.0)
    at.submit(at.first, "low2")
    at.submit(at.second, "high2")
    assert at.order() == ["low1", "high1", "high2", "low2"]


def test_a_queue_that_never_ages_holds_up_no_other_that_stands_aside() -> None:
    """Each queue has its own ageing time, and goes first when that has passed."""
    at = TwoQueues()
    never = at.scheduler.add_queue(
        at.runner,
        BatchQueueOptions(max_batch_rows=1, low=LowPriority(ageing_s=None)),
    )
    at.submit(never, "low-never")
    at.submit(at.first, "low1")
    at.clock.advance(0.5)
    at.submit(at.second, "low2")
    at.clock.advance(0.5)
    for name in ("high1", "high2"):
        at.scheduler.submit(at.other, FakeTask(name=name))
    assert at.order() == ["low1", "high1", "high2", "low-never", "low2"]


def test_a_task_of_high_priority_brings_its_queue_back_into_the_ring() -> None:
    """What gives way are tasks, not models."""
    at = TwoQueues()
    at.submit(at.first, "low1")
    at.submit(at.second, "high1")
    at.submit(at.first, "high2")
    at.submit(at.second, "high3")
    assert at.order() == ["high1", "high2", "high3", "low1"]


def test_a_deadline_is_kept_also_aside() -> None:
    """What stands aside still leaves its queue on time."""
    at = TwoQueues()
    late = FakeTask(deadline_s=START_S + 0.5)
    at.scheduler.submit(at.first, late, True)
    at.submit(at.second, "high1")
    due_s = at.scheduler.step(at.clock.now())
    assert due_s == pytest.approx(START_S + 0.5)
    at.clock.advance(0.5)
    at.scheduler.step(at.clock.now())
    assert isinstance(late.error, DeadlineExceeded)
    assert at.order() == ["high1"]
