"""A scheduler whose rounds and time are the test's."""

from __future__ import annotations

from typing import Any

from batching.batching_options import SchedulerOptions
from batching.shared_scheduler import SharedBatchScheduler
from tests.batching.fakes import FakeTask, JoinedOutcomes, PuppetRunner, split_task
from tfs.core.batch.batch_queue import BatchQueue
from tfs.core.batch.batch_queue_options import BatchQueueOptions
from tfs.testing.fake_clock import FakeClock

START_S = 1000.0


class SteppedScheduler:
    """A scheduler on a fake clock, and its queues' runners."""

    def __init__(self, **options: Any) -> None:
        self.clock = FakeClock(START_S)
        self.scheduler = SharedBatchScheduler(SchedulerOptions(**options), self.clock)

    def add(
        self, runner: PuppetRunner | None = None, policy: Any = None, **options: Any
    ) -> tuple[BatchQueue[FakeTask], PuppetRunner]:
        runner = runner or PuppetRunner()
        queue = self.scheduler.add_queue(
            runner,
            BatchQueueOptions(**{"max_batch_rows": 10, **options}),
            policy,
            split=split_task,
            join=JoinedOutcomes,
        )
        return queue, runner

    def submit(self, queue: BatchQueue[FakeTask], *rows: int) -> list[FakeTask]:
        tasks = [FakeTask(n) for n in rows]
        for task in tasks:
            self.scheduler.submit(queue, task)
        return tasks

    def step(self) -> float | None:
        return self.scheduler.step(self.clock.now())
