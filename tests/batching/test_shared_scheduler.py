"""Many queues on one device, without a thread."""

from __future__ import annotations

from typing import Any

import pytest

from batching.batching_options import QueuePolicy
from batching.deadline_window import WindowOptions
from tests.batching.fakes import FakeTask, PuppetRunner
from tests.batching.stepped_scheduler import START_S, SteppedScheduler
from tfs.core.batch.batch_queue_options import LowPriority
from tfs.core.errors import (
    Cancelled,
    DeadlineExceeded,
    Internal,
    Unavailable,
)


def test_one_request_is_not_kept_waiting() -> None:
    """With timeout 0 a lone task runs in the step after its arrival.

    shared_batch_scheduler_test:
    WithZeroTimeoutBatchesScheduledAsSoonAsThreadIsAvailable.
    """
    at = SteppedScheduler()
    queue, runner = at.add()
    (task,) = at.submit(queue, 1)
    assert at.step() is None
    assert runner.sizes == [[1]]
    runner.finish()
    assert task.outcome == "done"


def test_a_batch_grows_while_the_device_is_busy() -> None:
    """What comes meanwhile goes together, and starts when the device is free."""
    at = SteppedScheduler()
    queue, runner = at.add()
    at.submit(queue, 1)
    at.step()
    at.submit(queue, 1, 2, 3)
    at.step()
    assert runner.sizes == [[1]]
    runner.finish()
    assert runner.sizes == [[1], [1, 2, 3]]


def test_the_next_batch_starts_before_the_last_ones_tasks_hear() -> None:
    """The device does not wait for callbacks."""
    at = SteppedScheduler()
    queue, runner = at.add()
    seen: list[int] = []
    task = FakeTask(on_done=lambda outcome: seen.append(len(runner.sizes)))
    at.scheduler.submit(queue, task)
    at.step()
    at.submit(queue, 1)
    runner.finish()
    assert seen == [2]


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_as_many_batches_run_as_there_are_threads(num_threads: int) -> None:
    """num_batch_threads bounds the batches in flight over all queues.

    shared_batch_scheduler_test: Basic.
    """
    at = SteppedScheduler(num_batch_threads=num_threads)
    runner = PuppetRunner()
    queues = [at.add(runner)[0] for _ in range(4)]
    tasks = [at.submit(queue, 1)[0] for queue in queues]
    at.step()
    assert len(runner.running) == num_threads
    while runner.running:
        runner.finish()
    assert [task.outcome for task in tasks] == ["done"] * 4


def test_a_queue_may_have_a_limit_of_its_own() -> None:
    """max_in_flight bounds one queue while others use the rest."""
    at = SteppedScheduler(num_batch_threads=3)
    first, first_runner = at.add(policy=QueuePolicy(max_in_flight=1), max_batch_rows=1)
    second, second_runner = at.add(max_batch_rows=1)
    at.submit(first, 1, 1, 1)
    at.submit(second, 1, 1, 1)
    at.step()
    assert (len(first_runner.running), len(second_runner.running)) == (1, 2)
    first_runner.finish()
    assert (len(first_runner.running), len(second_runner.running)) == (1, 2)
    second_runner.finish()
    second_runner.finish()
    assert (len(first_runner.running), len(second_runner.running)) == (1, 1)


def test_the_timeout_is_kept_exactly() -> None:
    """A batch goes at its timeout, which step tells, or as soon as it is full.

    shared_batch_scheduler_test: ObeysTimeout.
    """
    at = SteppedScheduler()
    queue, runner = at.add(timeout_s=2.0, max_batch_rows=4)
    at.submit(queue, 1)
    assert at.step() == START_S + 2.0
    at.clock.advance(1.0)
    at.submit(queue, 2)
    assert at.step() == START_S + 2.0
    assert runner.sizes == []
    at.clock.advance(1.0)
    assert at.step() is None
    assert runner.sizes == [[1, 2]]
    runner.finish()
    at.submit(queue, 3)
    at.clock.advance(0.5)
    at.step()
    at.submit(queue, 2)  # overflows: the first goes, the second has its own timer
    assert at.step() is None  # the device is busy
    assert runner.sizes == [[1, 2], [3]]
    runner.finish()
    assert at.step() == START_S + 4.5
    at.clock.advance(2.0)
    at.step()
    assert runner.sizes == [[1, 2], [3], [2]]


def test_a_timer_left_by_a_gone_batch_wakes_nobody() -> None:
    """step's answer is about tasks that still wait."""
    at = SteppedScheduler()
    queue, runner = at.add(timeout_s=2.0, max_batch_rows=2)
    at.submit(queue, 1)
    assert at.step() == START_S + 2.0
    at.submit(queue, 1)
    at.step()
    runner.finish()
    assert at.step() is None
    at.clock.advance(1.0)
    at.submit(queue, 1)
    assert at.step() == START_S + 3.0


def test_a_full_queue_does_not_block_others() -> None:
    """A queue that refuses tasks keeps no other from taking them
    (shared_batch_scheduler_test: OneFullQueueDoesntBlockOtherQueues).
    """
    at = SteppedScheduler(num_batch_threads=2)
    full, full_runner = at.add(max_rows=10, policy=QueuePolicy(max_in_flight=1))
    other, other_runner = at.add()
    at.submit(full, 10)
    at.step()
    at.submit(full, 10)
    task = FakeTask(1)
    at.scheduler.submit(full, task)
    assert isinstance(task.error, Unavailable)
    (fine,) = at.submit(other, 1)
    at.step()
    other_runner.finish()
    assert fine.outcome == "done"
    assert len(full_runner.sizes) == 1


def test_a_batch_that_runs_is_not_enqueued_any_more() -> None:
    """Capacity counts what waits, not what runs.

    shared_batch_scheduler_test: ConstMethods.
    """
    at = SteppedScheduler()
    for num_batches in (1, 2, 5):
        queue, runner = at.add(max_batch_rows=2, max_rows=2 * num_batches)
        at.submit(queue, 2)
        at.step()
        assert queue.num_rows == 0
        for index in range(num_batches):
            at.submit(queue, 2)
            assert queue.num_rows == 2 * (index + 1)
        task = FakeTask(1)
        at.scheduler.submit(queue, task)
        assert "is full" in task.error.message
        while runner.running:
            runner.finish()


def test_removal_drains() -> None:
    """What waits still runs, at once; nothing new comes in; then the queue is gone.

    shared_batch_scheduler_test: QueueDestructorBlocksUntilAllTasksProcessed;
    adaptive_shared_batch_scheduler_test: DeleteQueue.
    """
    at = SteppedScheduler()
    queue, runner = at.add(timeout_s=100.0, max_batch_rows=4)
    tasks = at.submit(queue, 4, 2)
    at.step()
    drained: list[str] = []
    at.scheduler.remove_queue(queue, lambda: drained.append("first"))
    at.scheduler.remove_queue(queue, lambda: drained.append("second"))
    refused = FakeTask()
    at.scheduler.submit(queue, refused)
    assert isinstance(refused.error, Unavailable)
    at.step()
    runner.finish()
    assert (drained, list(at.scheduler.queues)) == ([], [queue])
    runner.finish()
    assert [task.outcome for task in tasks] == ["done"] * 2
    assert (drained, list(at.scheduler.queues)) == (["first", "second"], [])
    at.scheduler.remove_queue(queue, lambda: drained.append("again"))
    assert drained[-1] == "again"


def test_an_empty_queue_is_removed_at_once() -> None:
    """A queue in which nothing waits or runs is drained when it is removed
    (adaptive_shared_batch_scheduler_test: DeleteQueue, empty).
    """
    at = SteppedScheduler()
    queue, _ = at.add()
    drained: list[bool] = []
    at.scheduler.remove_queue(queue, lambda: drained.append(True))
    assert drained == [True]


def test_removal_with_an_error_ends_what_waits() -> None:
    """What runs is finished, what waits fails."""
    at = SteppedScheduler()
    queue, runner = at.add(max_batch_rows=1)
    running, waiting = at.submit(queue, 1, 1)
    at.step()
    at.scheduler.remove_queue(queue, error=Unavailable("unloaded"))
    assert waiting.error.message == "unloaded"
    runner.finish()
    assert running.outcome == "done"
    assert list(at.scheduler.queues) == []


def test_a_queue_drained_by_expiry_is_gone() -> None:
    """A removed queue whose last task expired does not linger."""
    at = SteppedScheduler()
    busy, busy_runner = at.add()
    queue, _ = at.add()
    at.submit(busy, 1)
    at.step()
    task = FakeTask(deadline_s=START_S + 1)
    at.scheduler.submit(queue, task)
    at.scheduler.remove_queue(queue)
    at.clock.advance(2.0)
    busy_runner.finish()
    assert isinstance(task.error, DeadlineExceeded)
    assert list(at.scheduler.queues) == [busy]


def test_a_task_expires_on_time_while_its_batch_waits_to_fill() -> None:
    """Deadlines are timers, not looked at when the batch goes.

    batching_session_test: EnqueuedLongerThanTimeout (there RESOURCE_EXHAUSTED, and
    only if all tasks of the batch are late).
    """
    at = SteppedScheduler()
    queue, runner = at.add(timeout_s=10.0, policy=QueuePolicy(max_in_flight=1))
    at.submit(queue, 10)  # a whole batch
    at.step()
    late = FakeTask(deadline_s=START_S + 3.0)
    at.scheduler.submit(queue, late)
    at.submit(queue, 1)
    assert at.step() == START_S + 3.0
    at.clock.advance(3.0)
    assert at.step() is None
    assert isinstance(late.error, DeadlineExceeded)
    runner.finish()
    assert at.step() == START_S + 10.0
    at.clock.advance(7.0)
    at.step()
    assert runner.sizes == [[10], [1]]


def test_a_batch_goes_before_its_window_ends_if_a_task_would_be_late() -> None:
    """Nobody misses a deadline on an idle device for want of company.

    TensorFlow Serving and Triton wait for the window all the same.
    """
    at = SteppedScheduler()
    queue, runner = at.add(timeout_s=10.0)
    at.scheduler.submit(queue, FakeTask(name="hurried", deadline_s=START_S + 4.0))
    assert at.step() == START_S + 3.0  # a quarter of its time is for computing it
    at.clock.advance(3.0)
    assert at.step() is None
    assert runner.names == [["hurried"]]
    at.clock.advance(0.5)
    runner.finish()
    queue.s_per_row = 1.0
    at.scheduler.submit(queue, FakeTask(2, deadline_s=at.clock.now() + 9.0))
    assert at.step() == at.clock.now() + 9.0 - 4.0  # twice what its rows take


def test_a_task_expires_on_time_while_the_device_is_busy() -> None:
    """step asks to be called for the deadlines of what waits for the device."""
    at = SteppedScheduler()
    queue, runner = at.add()
    at.submit(queue, 1)
    at.step()
    late = FakeTask(deadline_s=START_S + 3.0)
    at.scheduler.submit(queue, late)
    assert at.step() == START_S + 3.0
    at.clock.advance(3.0)
    assert at.step() is None
    assert isinstance(late.error, DeadlineExceeded)
    runner.finish()


def test_mass_expiry_is_swept_in_bounded_time() -> None:
    """Sweeps are spaced by what they cost; step still comes back for the rest."""
    at = SteppedScheduler()
    queue, _ = at.add(max_batch_rows=1000)
    at.submit(queue, 1)
    at.step()  # from here on the device is busy
    tasks = [FakeTask(deadline_s=START_S + 1 + index * 1e-6) for index in range(500)]
    for task in tasks:
        at.scheduler.submit(queue, task)
    num_steps = 0
    when_s = at.step()
    while when_s is not None:
        at.clock.advance(when_s - at.clock.now())
        when_s = at.step()
        num_steps += 1
    assert num_steps < 20
    assert all(isinstance(task.error, DeadlineExceeded) for task in tasks)


def test_a_task_alone_leaves_as_it_would_among_others() -> None:
    """A queue's only task is taken without ceremony, but not if it is dead or begun."""
    at = SteppedScheduler(num_batch_threads=10)
    cancelled, runner = at.add()
    (task,) = at.submit(cancelled, 1)
    task.cancel.cancel(Cancelled("gone"))
    expired, _ = at.add(runner)
    late = FakeTask(deadline_s=START_S)
    at.scheduler.submit(expired, late)
    low, _ = at.add(runner)
    patient = FakeTask(name="low")
    at.scheduler.submit(low, patient, low=True)
    halved, _ = at.add(runner, splits=True, max_batch_rows=2)
    large = FakeTask(3, name="large")
    at.scheduler.submit(halved, large)
    at.step()
    assert isinstance(task.error, Cancelled)
    assert isinstance(late.error, DeadlineExceeded)
    # What is left of the large one is a row, and still a part of it.
    assert sorted(runner.names) == [["large[0:2]"], ["large[2:3]"], ["low"]]
    while runner.running:
        runner.finish()
    assert patient.outcome == "low"
    assert large.outcome == ["large[0:2]", "large[2:3]"]
    for queue in (cancelled, expired, low, halved):
        assert queue.is_idle
        assert queue.num_rows == len(queue) == 0


def test_what_waited_and_ran_is_counted() -> None:
    """Sizes, waits and device time per queue."""
    at = SteppedScheduler()
    queue, runner = at.add()
    at.submit(queue, 2)
    at.step()
    at.submit(queue, 1, 3)
    at.clock.advance(0.5)
    runner.finish()
    at.clock.advance(0.25)
    runner.finish()
    stats = queue.stats
    assert (stats.num_batches, stats.num_tasks, stats.num_rows) == (2, 3, 6)
    assert stats.batch_rows().mean == 3.0
    assert stats.wait().total == pytest.approx(0.5)
    assert stats.execution().total == pytest.approx(0.75)
    assert stats.execution().num == 2
    assert (stats.depth().num, stats.depth().total) == (2, 2.0)
    assert queue.s_per_row > 0


@pytest.mark.parametrize("num", [1, 2, 8, 32, 64])
def test_times_of_short_batches_show_from_the_first_on(num: int) -> None:
    """Some stand for all of a size, and ten requests are enough to see them."""
    at = SteppedScheduler()
    queue, runner = at.add()
    for _ in range(num):
        at.submit(queue, 1)
        at.step()
        at.clock.advance(50e-6)
        runner.finish()
    assert queue.stats.execution().num == num
    assert queue.stats.execution().mean == pytest.approx(50e-6)
    assert queue.s_per_row == pytest.approx(50e-6)


def test_waiting_behind_another_batch_is_not_device_time() -> None:
    """On a serial device batches in flight are charged from when it was their turn."""
    at = SteppedScheduler(num_batch_threads=2)
    first, first_runner = at.add()
    second, second_runner = at.add()
    at.submit(first, 1)
    at.submit(second, 1)
    at.step()
    at.clock.advance(3.0)
    first_runner.finish()
    at.clock.advance(1.0)
    second_runner.finish()
    assert second.stats.device_s == pytest.approx(1.0)


@pytest.mark.parametrize("low_first", [False, True])
@pytest.mark.parametrize(
    ("policy", "options"),
    [
        (None, {}),
        (None, {"timeout_s": 1.0}),
        (QueuePolicy(max_in_flight=1), {}),
        (QueuePolicy(window=WindowOptions()), {}),
    ],
)
def test_tasks_submitted_together_run_as_submitted_apart(
    policy: QueuePolicy | None, options: dict[str, Any], low_first: bool
) -> None:
    """The same batches at the same time, whatever the queue waits for."""
    seen = []
    for together in (True, False):
        at = SteppedScheduler()
        queue, runner = at.add(policy=policy, low=LowPriority(), **options)
        if low_first:
            at.scheduler.submit(queue, FakeTask(2), low=True)
        for _ in range(2):
            tasks = [FakeTask(1) for _ in range(8)]
            if together:
                at.scheduler.submit_all(queue, tasks)
            else:
                for task in tasks:
                    at.scheduler.submit(queue, task)
        due = []
        for _ in range(3):
            due.append(at.step())
            at.clock.advance(1.0)
        seen.append((due, runner.sizes))
    assert seen[0] == seen[1]


def test_a_task_computed_past_its_queue_counts_as_a_batch_of_it() -> None:
    """Counts, times, learned costs and shares are those of a batch of one."""
    durations_s = [0.00001, 0.0002, 0.003, 0.02] * 30
    seen = []
    for is_alone in (True, False):
        at = SteppedScheduler(quantum_s=0.01)
        queue, runner = at.add(allowed_rows=(1, 2, 10))
        for index, duration_s in enumerate(durations_s):
            num_rows, fails = 1 + index % 2, not index % 7
            if is_alone:
                begun_s = at.scheduler.begin_now(queue, num_rows)
                assert begun_s == at.clock.now()
                at.clock.advance(duration_s)
                at.scheduler.end_now(queue, 1, num_rows, begun_s, failed=fails)
            else:
                at.submit(queue, num_rows)
                at.step()
                at.clock.advance(duration_s)
                if fails:
                    runner.fail(Internal("no"))
                else:
                    runner.finish()
        stats = queue.stats
        seen.append(
            (
                stats.rows_counts,
                stats.num_tasks,
                stats.num_failures,
                stats.num_failed_tasks,
                stats.execution(),
                stats.wait(),
                stats.depth(),
                queue.s_per_row,
                queue.padded,
            )
        )
        assert queue.credit_s > -0.02  # what nobody else wanted is not owed
    assert seen[0] == seen[1]


def test_a_task_is_queued_where_others_would_have_to_wait_for_it() -> None:
    """Past its queue goes only what its turn would have come to at once."""
    at = SteppedScheduler(num_batch_threads=2)
    queue, _ = at.add(allowed_rows=(2, 10))
    assert at.scheduler.begin_now(queue, 1) is None  # to be padded
    assert at.scheduler.begin_now(queue, 2) is not None
    waits, _ = at.add(timeout_s=1.0)
    assert at.scheduler.begin_now(waits, 1) is None  # for more of its kind
    other, _ = at.add()
    at.submit(other, 1)
    assert at.scheduler.begin_now(queue, 2) is None  # the other one came first
    at.step()
    assert at.scheduler.begin_now(queue, 2) is None  # the device is busy
    at.scheduler.remove_queue(queue)
    assert at.scheduler.begin_now(queue, 2) is None


def test_a_queue_that_ranks_by_deadline_gets_every_task() -> None:
    """Its window learns from arrivals."""
    at = SteppedScheduler()
    queue, _ = at.add(policy=QueuePolicy(window=WindowOptions()))
    assert at.scheduler.begin_now(queue, 1) is None
