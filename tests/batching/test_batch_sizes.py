"""How many rows a batch takes: allowed sizes, padding, and tasks that are split."""

from __future__ import annotations

from batching.batching_options import QueuePolicy
from batching.cost_table import CostTable, Padding
from tests.batching.fakes import PuppetRunner
from tests.batching.stepped_scheduler import SteppedScheduler
from tfs.core.batch.batch_queue_options import BatchQueueOptions


def test_batches_are_padded_to_the_next_allowed_size() -> None:
    """A batch is padded to the least allowed size that holds it (batching_session_test:
    AllowedBatchSizesNoPaddingNeeded, ...RequirePadding).
    """
    at = SteppedScheduler()
    queue, runner = at.add(PuppetRunner(inline=True), allowed_rows=(2, 4, 10))
    for rows in (1, 2, 3, 5):
        at.submit(queue, rows)
        at.step()
    assert runner.padded == [2, 2, 4, 10]
    assert queue.stats.num_padding_rows == 1 + 1 + 5


def test_down_takes_only_what_fills_an_allowed_size() -> None:
    """shared_batch_scheduler_test: BatchPaddingPolicyBatchDown, but for the rest's
    start time: here a task's time is its own, so nobody waits beyond the timeout.
    """
    at = SteppedScheduler()
    policy = QueuePolicy(padding=Padding.DOWN)
    queue, runner = at.add(policy=policy, allowed_rows=(1, 2, 4, 8), max_batch_rows=8)
    at.submit(queue, 1, 1, 1)
    at.step()
    assert runner.sizes == [[1, 1]]
    runner.finish()
    assert runner.sizes == [[1, 1], [1]]
    at.submit(queue, 3)
    runner.finish()
    assert runner.sizes[-1] == [3]
    assert runner.padded[-1] == 4


def test_cheapest_goes_down_or_up_by_measured_cost() -> None:
    """MINIMIZE_TPU_COST_PER_REQUEST: device time per row decides."""
    for cost_at_8, sizes in ((1.0, [[1] * 5]), (4.0, [[1] * 4, [1]])):
        at = SteppedScheduler()
        runner = PuppetRunner(inline=True)
        queue = at.scheduler.add_queue(
            runner,
            BatchQueueOptions(max_batch_rows=8, allowed_rows=(1, 4, 8)),
            QueuePolicy(padding=Padding.CHEAPEST),
            costs=CostTable({1: 0.9, 4: 1.0, 8: cost_at_8}),
        )
        at.submit(queue, *[1] * 5)
        at.step()
        assert runner.sizes == sizes


def test_split_tasks_run_on_several_batches() -> None:
    """A task larger than a batch is spread over several and answered once
    (batching_session_test: BatchingWithLargeBatch).
    """
    at = SteppedScheduler(num_batch_threads=2)
    queue, runner = at.add(splits=True, max_batch_rows=4)
    tasks = at.submit(queue, 3, 3)
    at.step()
    assert runner.sizes == [[3, 1], [2]]
    runner.finish(1)
    runner.finish(0)
    assert tasks[0].outcome == "done"
    assert tasks[1].outcome == ["[0:1]", "[1:3]"]


def test_a_size_that_looked_dear_by_mistake_is_tried_again() -> None:
    """What is padded away is not seen any more, so a wrong number would stay for ever."""
    at = SteppedScheduler()
    runner = PuppetRunner()
    queue = at.scheduler.add_queue(
        runner,
        BatchQueueOptions(max_batch_rows=8),
        costs=CostTable({1: 0.1, 2: 9.0, 4: 0.2, 8: 0.3}),
    )
    for _ in range(100):
        at.submit(queue, 2)
        at.step()
        at.clock.advance(0.05 * runner.padded[-1])
        runner.finish()
    assert runner.padded[0] == 4
    assert runner.padded[-1] == 2
    assert 4 not in runner.padded[60:]
