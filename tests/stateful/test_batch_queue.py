"""The batch queue against a model of it: whatever is called, in whatever order."""

from __future__ import annotations

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
)

from tests.batching.fakes import FakeTask, JoinedOutcomes, split_task
from tfs.core.batch.batch_queue import BatchQueue
from tfs.core.batch.batch_queue_options import BatchQueueOptions, LowPriority, Mixing
from tfs.core.errors import Cancelled, ServingError, Unavailable


class BatchQueueMachine(RuleBasedStateMachine):
    """Puts, takes, cancels, lets time pass, closes; ends what was taken, later."""

    tasks = Bundle("tasks")

    @initialize(
        max_batch=st.integers(1, 8),
        num_batches=st.integers(1, 4),
        splits=st.booleans(),
        timeout_s=st.sampled_from([0.0, 2.0]),
        low=st.one_of(
            st.none(),
            st.builds(
                LowPriority,
                mixing=st.sampled_from(Mixing),
                ageing_s=st.sampled_from([None, 0.0, 3.0]),
                max_rows=st.one_of(st.none(), st.integers(1, 10)),
            ),
        ),
    )
    def make(
        self,
        max_batch: int,
        num_batches: int,
        splits: bool,
        timeout_s: float,
        low: LowPriority | None,
    ) -> None:
        self.options = BatchQueueOptions(
            max_batch_rows=max_batch,
            max_rows=max_batch * num_batches,
            splits=splits,
            timeout_s=timeout_s,
            low=low,
        )
        self.queue: BatchQueue[FakeTask] = BatchQueue(
            self.options, split=split_task, join=JoinedOutcomes
        )
        self.now_s = 0.0
        self.all: list[FakeTask] = []
        self.admitted: list[FakeTask] = []
        self.parts: list[FakeTask] = []
        self.taken: list[FakeTask] = []

    @rule(
        target=tasks,
        rows=st.integers(1, 12),
        low=st.booleans(),
        slack_s=st.one_of(st.none(), st.integers(0, 5)),
    )
    def put(self, rows: int, low: bool, slack_s: int | None) -> object:
        deadline_s = None if slack_s is None else self.now_s + slack_s
        task = FakeTask(rows, name=str(len(self.all)), deadline_s=deadline_s)
        self.all.append(task)
        if self.queue.put(task, self.now_s, low):
            self.admitted.append(task)
            assert task.is_waiting
            return task
        assert isinstance(task.error, ServingError)
        return multiple()

    @rule(task=tasks)
    def cancel(self, task: FakeTask) -> None:
        task.cancel.cancel(Cancelled("gone"))

    @rule(seconds=st.integers(1, 3))
    def wait(self, seconds: int) -> None:
        self.now_s += seconds

    @rule()
    def take(self) -> None:
        due_s = self.queue.due_s
        had_tasks = len(self.queue) > 0
        batch, num_rows, _ = self.queue.take(self.now_s)
        assert num_rows == sum(task.num_rows for task in batch)
        assert num_rows <= self.options.max_batch_rows
        assert had_tasks or not batch
        assert had_tasks or due_s == math.inf
        for task in batch:
            assert task.cancel.error is None
            assert task.deadline_s is None or task.deadline_s > self.now_s
            assert task.is_waiting
        self.parts += batch

    @rule(succeeds=st.booleans(), data=st.data())
    def end_one(self, succeeds: bool, data: st.DataObject) -> None:
        if self.parts:
            index = data.draw(st.integers(0, len(self.parts) - 1))
            part = self.parts.pop(index)
            part.on_done(part.name if succeeds else Unavailable("failed"))

    @rule()
    def sweep(self) -> None:
        self.queue.drop_dead(self.now_s)
        assert self.queue.next_deadline_s > self.now_s

    @rule()
    def close(self) -> None:
        self.queue.close()

    @rule()
    def fail_all(self) -> None:
        self.queue.fail_all(Unavailable("over"))
        assert len(self.queue) == 0

    @invariant()
    def nothing_ends_twice(self) -> None:
        assert all(len(task.outcomes) <= 1 for task in self.all)

    @invariant()
    def rows_are_counted(self) -> None:
        assert 0 <= self.queue.num_rows <= self.options.rows_limit
        assert (self.queue.num_rows > 0) == (len(self.queue) > 0)
        assert (self.queue.due_s == math.inf) == (len(self.queue) == 0)

    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return
        self.queue.close()
        while len(self.queue):
            self.take()
        for part in self.parts:
            part.on_done(part.name)
        assert all(len(task.outcomes) == 1 for task in self.all)


TestBatchQueue = BatchQueueMachine.TestCase
TestBatchQueue.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
