"""A scheduler in which everything happens at once, and a count of how tasks ended."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from batching.batch import Batch, FaultyTasks
from batching.batching_options import QueuePolicy, SchedulerOptions
from batching.shared_scheduler import SharedBatchScheduler
from tests.batching.fakes import FakeTask, JoinedOutcomes, split_task
from tests.batching.simulation import VirtualClock
from tfs.core.batch.batch_queue import BatchQueue
from tfs.core.batch.batch_queue_options import BatchQueueOptions, LowPriority, Mixing
from tfs.core.errors import Cancelled, Internal, InvalidArgument, ServingError


class ChaosRunner:
    """Ends batches late, in any order, well or badly."""

    def __init__(self, rng: random.Random, clock: VirtualClock) -> None:
        self._rng = rng
        self._clock = clock
        self.running: list[Batch[FakeTask]] = []
        self.faults: list[str] = []

    def run(self, batch: Batch[FakeTask]) -> None:
        # A scheduler contains what a runner raises, assertions among it.
        self.faults += [task.name for task in batch.tasks if not self._is_due(task)]
        chance = self._rng.random()
        if chance < 0.01:
            raise ValueError("cannot start")
        if chance < 0.3:
            self._end(batch)
        else:
            self.running.append(batch)

    def _is_due(self, task: FakeTask) -> bool:
        is_late = task.deadline_s is not None and task.deadline_s <= self._clock.now_s
        return task.is_waiting and task.cancel.error is None and not is_late

    def end_some(self) -> None:
        for _ in range(self._rng.randint(0, len(self.running))):
            self._end(self.running.pop(self._rng.randrange(len(self.running))))

    def _end(self, batch: Batch[FakeTask]) -> None:
        assert batch.num_rows == sum(task.num_rows for task in batch.tasks)
        chance = self._rng.random()
        if chance < 0.05:
            batch.done(Internal("the whole batch"))
        elif chance < 0.1:
            batch.done(FaultyTasks({0: InvalidArgument("the first")}))
        elif chance < 0.11:
            batch.done([])
        else:
            batch.done([self._outcome(task) for task in batch.tasks])

    def _outcome(self, task: FakeTask) -> Any:
        return Internal("one row") if self._rng.random() < 0.02 else task.name


class Ledger:
    """Counts how often each task ended."""

    def __init__(self) -> None:
        self.num_submitted = 0
        self.num_ended = 0
        self.num_twice = 0
        self.kinds: Counter[str] = Counter()

    def task(self, rng: random.Random, now_s: float) -> FakeTask:
        self.num_submitted += 1
        task = FakeTask(rng.randint(1, 6), name=str(self.num_submitted))
        if rng.random() < 0.2:
            task.deadline_s = now_s + rng.random() * 0.02

        def on_done(outcome: Any) -> None:
            if len(task.outcomes) > 1:
                self.num_twice += 1
                return
            self.num_ended += 1
            is_error = isinstance(outcome, ServingError)
            self.kinds[type(outcome).__name__ if is_error else "done"] += 1

        task._on_done = on_done
        return task


def options(rng: random.Random) -> BatchQueueOptions:
    splits = rng.random() < 0.5
    max_batch = rng.choice([1, 4, 8, 32]) if splits else rng.choice([8, 32])
    return BatchQueueOptions(
        max_batch_rows=max_batch,
        max_rows=rng.choice([max_batch, 64, 512]),
        timeout_s=rng.choice([0.0, 0.0, 0.003]),
        allowed_rows=rng.choice([(), (max_batch,)]),
        splits=splits,
        low=rng.choice(
            [None, LowPriority(), *(LowPriority(mixing=mixing) for mixing in Mixing)]
        ),
    )


def run_chaos(seed: int, num_tasks: int) -> Ledger:
    rng = random.Random(seed)
    clock = VirtualClock()
    scheduler = SharedBatchScheduler(
        SchedulerOptions(
            num_batch_threads=rng.randint(1, 4),
            max_batches_per_step=rng.choice([1, 3, 64]),
            quantum_s=rng.choice([1e-4, 0.02]),
        ),
        clock,
    )
    runner = ChaosRunner(rng, clock)
    ledger = Ledger()
    queues: list[BatchQueue[FakeTask]] = []
    removed: list[BatchQueue[FakeTask]] = []
    recent: list[FakeTask] = []

    def submit() -> None:
        task = ledger.task(rng, clock.now_s)
        recent.append(task)
        # Now and then into a queue that is gone.
        pool = removed if removed and rng.random() < 0.01 else queues
        scheduler.submit(rng.choice(pool), task, rng.random() < 0.2)

    while ledger.num_submitted < num_tasks:
        if len(queues) < 5:
            policy = QueuePolicy(
                weight=rng.choice([0.5, 1.0, 4.0]),
                max_in_flight=rng.choice([None, 1]),
            )
            queues.append(
                scheduler.add_queue(
                    runner, options(rng), policy, split=split_task, join=JoinedOutcomes
                )
            )
        for _ in range(rng.randint(0, 20)):
            submit()
        if recent and rng.random() < 0.3:
            rng.choice(recent).cancel.cancel(Cancelled("gone"))
        del recent[:-50]
        if rng.random() < 0.02:
            queue = queues.pop(rng.randrange(len(queues)))
            removed = [queue]
            error = Internal("unloaded") if rng.random() < 0.5 else None
            scheduler.remove_queue(queue, error=error)
        if rng.random() < 0.7:
            scheduler.step(clock.now_s)
        runner.end_some()
        assert all(0 <= each.num_rows <= each.options.rows_limit for each in queues)
        clock.now_s += rng.random() * 0.002
    for queue in queues:
        scheduler.remove_queue(queue)
    for _ in range(10_000):
        if not scheduler.queues:
            break
        clock.now_s += 1.0
        scheduler.step(clock.now_s)
        runner.end_some()
    assert list(scheduler.queues) == []
    assert scheduler.num_in_flight == 0
    assert runner.faults == []
    return ledger
