"""Many queues on one device, without a thread."""

from __future__ import annotations

from typing import Any

import pytest

from batching.batch import Batch
from batching.cost_table import CostTable
from batching.deadline_window import WindowOptions
from batching.options import Order, Padding, QueuePolicy, SchedulerOptions
from batching.shared_queue import SharedQueue
from batching.shared_scheduler import SharedBatchScheduler
from tests.batching.fakes import FakeTask, JoinedOutcomes, PuppetRunner, split_task
from tfs.core.batch_queue_options import BatchQueueOptions, LowPriority
from tfs.core.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InterpreterDied,
    InvalidArgument,
    Unavailable,
)
from tfs.testing.fake_clock import FakeClock

START_S = 1000.0


class Fixture:
    """A scheduler on a fake clock, and its queues' runners."""

    def __init__(self, **options: Any) -> None:
        self.clock = FakeClock(START_S)
        self.scheduler = SharedBatchScheduler(SchedulerOptions(**options), self.clock)

    def add(
        self, runner: PuppetRunner | None = None, policy: Any = None, **options: Any
    ) -> tuple[SharedQueue[FakeTask], PuppetRunner]:
        runner = runner or PuppetRunner()
        queue = self.scheduler.add_queue(
            runner,
            BatchQueueOptions(**{"max_batch_rows": 10, **options}),
            policy,
            split=split_task,
            join=JoinedOutcomes,
        )
        return queue, runner

    def submit(self, queue: SharedQueue[FakeTask], *rows: int) -> list[FakeTask]:
        tasks = [FakeTask(n) for n in rows]
        for task in tasks:
            self.scheduler.submit(queue, task)
        return tasks

    def step(self) -> float | None:
        return self.scheduler.step(self.clock.now())


def test_one_request_is_not_kept_waiting() -> None:
    """With timeout 0 a lone task runs in the step after its arrival.

    shared_batch_scheduler_test: WithZeroTimeoutBatchesScheduledAsSoonAsThreadIs
    Available.
    """
    at = Fixture()
    queue, runner = at.add()
    (task,) = at.submit(queue, 1)
    assert at.step() is None
    assert runner.sizes == [[1]]
    runner.finish()
    assert task.outcome == "done"


def test_a_batch_grows_while_the_device_is_busy() -> None:
    """What comes meanwhile goes together, and starts when the device is free."""
    at = Fixture()
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
    at = Fixture()
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
    at = Fixture(num_batch_threads=num_threads)
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
    at = Fixture(num_batch_threads=3)
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
    at = Fixture()
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
    at = Fixture()
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


def test_a_light_queue_goes_before_one_that_just_ran() -> None:
    """A queue that has used less of the device is served first
    (shared_batch_scheduler_test: Fairness).
    """
    at = Fixture()
    heavy, heavy_runner = at.add()
    light, light_runner = at.add()
    at.submit(heavy, 10, 10, 10)
    at.step()
    at.submit(light, 1)
    heavy_runner.finish()
    assert (len(heavy_runner.sizes), len(light_runner.sizes)) == (1, 1)
    light_runner.finish()
    assert len(heavy_runner.sizes) == 2


def run_backlogged(
    at: Fixture, batch_s: list[float], policies: list[QueuePolicy], num_batches: int
) -> list[float]:
    """Runs queues that always have work; returns the device time of each."""
    used_s = [0.0] * len(batch_s)
    runner_of: dict[PuppetRunner, int] = {}
    queues = []
    for index, policy in enumerate(policies):
        queue, runner = at.add(policy=policy, max_batch_rows=1, max_rows=10_000)
        runner_of[runner] = index
        queues.append(queue)
    for queue in queues:
        at.submit(queue, *[1] * num_batches)
    at.step()
    for _ in range(num_batches):
        (runner,) = [runner for runner in runner_of if runner.running]
        index = runner_of[runner]
        at.clock.advance(batch_s[index])
        used_s[index] += batch_s[index]
        runner.finish()
        at.step()
    return used_s


def test_round_robin_is_fair_in_device_time() -> None:
    """A queue with slow batches gets fewer of them."""
    at = Fixture()
    used_s = run_backlogged(at, [0.1, 0.01], [QueuePolicy(), QueuePolicy()], 1000)
    assert used_s[0] == pytest.approx(used_s[1], rel=0.05)


def test_one_stall_does_not_keep_a_queue_from_the_device() -> None:
    """A first batch that compiled for a minute is not paid for with a minute of waiting.

    Batches that always take that long are: the device is shared by time.
    """
    at = Fixture()
    stalled, its_runner = at.add(max_batch_rows=1)
    busy, runner = at.add(max_batch_rows=1, max_rows=10_000)
    at.submit(stalled, 1)
    at.submit(busy, *[1] * 500)
    at.step()
    at.clock.advance(60.0)
    its_runner.finish()
    at.submit(stalled, 1)
    waited_s = 0.0
    while not its_runner.running:
        at.clock.advance(0.01)
        waited_s += 0.01
        runner.finish()
        at.step()
    assert waited_s < 1.2
    at = Fixture()
    used_s = run_backlogged(at, [10.0, 0.1], [QueuePolicy(), QueuePolicy()], 2000)
    assert used_s[0] == pytest.approx(used_s[1], rel=0.2)


def test_weights_share_the_device() -> None:
    """Weight 3 gets three times the device time of weight 1."""
    at = Fixture()
    policies = [QueuePolicy(weight=1.0), QueuePolicy(weight=3.0)]
    used_s = run_backlogged(at, [0.02, 0.03], policies, 1000)
    assert used_s[1] / used_s[0] == pytest.approx(3.0, rel=0.1)


def test_a_queue_alone_gets_everything() -> None:
    """Having used up its share delays nobody if nobody else waits."""
    at = Fixture(quantum_s=0.001)
    queue, runner = at.add(max_batch_rows=1)
    at.submit(queue, 1, 1, 1)
    at.step()
    for _ in range(3):
        at.clock.advance(1.0)
        runner.finish()
    assert len(runner.sizes) == 3


def test_rounds_pass_over_queues_that_have_nothing_due() -> None:
    """A queue whose tasks left while it waited for its round holds up nobody."""
    at = Fixture(quantum_s=0.001)
    first, first_runner = at.add(max_batch_rows=1)
    second, second_runner = at.add(max_batch_rows=1)
    (_, gone) = at.submit(first, 1, 1)
    at.submit(second, 1, 1)
    at.step()
    at.clock.advance(0.01)
    first_runner.finish()  # owes ten rounds
    at.clock.advance(0.1)
    gone.cancel.cancel(Cancelled("gone"))
    first.waiting.drop_dead(at.clock.now())
    second_runner.finish()  # owes a hundred, and is all there is
    assert len(second_runner.sizes) == 2


def test_a_full_queue_does_not_block_others() -> None:
    """A queue that refuses tasks keeps no other from taking them
    (shared_batch_scheduler_test: OneFullQueueDoesntBlockOtherQueues).
    """
    at = Fixture(num_batch_threads=2)
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
    at = Fixture()
    for num_batches in (1, 2, 5):
        queue, runner = at.add(max_batch_rows=2, max_rows=2 * num_batches)
        at.submit(queue, 2)
        at.step()
        assert queue.waiting.num_rows == 0
        for index in range(num_batches):
            at.submit(queue, 2)
            assert queue.waiting.num_rows == 2 * (index + 1)
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
    at = Fixture()
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
    at = Fixture()
    queue, _ = at.add()
    drained: list[bool] = []
    at.scheduler.remove_queue(queue, lambda: drained.append(True))
    assert drained == [True]


def test_removal_with_an_error_ends_what_waits() -> None:
    """What runs is finished, what waits fails."""
    at = Fixture()
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
    at = Fixture()
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
    at = Fixture()
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
    at = Fixture()
    queue, runner = at.add(timeout_s=10.0)
    at.scheduler.submit(queue, FakeTask(name="hurried", deadline_s=START_S + 4.0))
    assert at.step() == START_S + 3.0  # a quarter of its time is for computing it
    at.clock.advance(3.0)
    assert at.step() is None
    assert runner.names == [["hurried"]]
    at.clock.advance(0.5)
    runner.finish()
    queue.waiting.s_per_row = 1.0
    at.scheduler.submit(queue, FakeTask(2, deadline_s=at.clock.now() + 9.0))
    assert at.step() == at.clock.now() + 9.0 - 4.0  # twice what its rows take


def test_a_task_expires_on_time_while_the_device_is_busy() -> None:
    """step asks to be called for the deadlines of what waits for the device."""
    at = Fixture()
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
    at = Fixture()
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
    at = Fixture(num_batch_threads=10)
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
        assert queue.waiting.num_rows == len(queue.waiting) == 0


def test_a_cancelled_task_costs_no_compute() -> None:
    """It leaves when its batch is formed, with its own reason."""
    at = Fixture()
    queue, runner = at.add()
    gone, stays = at.submit(queue, 2, 3)
    gone.cancel.cancel(Cancelled("gone"))
    at.step()
    assert runner.sizes == [[3]]
    assert isinstance(gone.error, Cancelled)
    assert stays.is_waiting


def poison(task: FakeTask) -> Internal | None:
    return Internal("bad row") if task.name == "bad" else None


def run_with(at: Fixture, names: str, **kwargs: Any) -> tuple[Any, Any]:
    """Submits one task per word, runs everything, returns tasks and runner."""
    runner = PuppetRunner(inline=True)
    runner.fails_on = poison
    queue, _ = at.add(runner, max_batch_rows=64, **kwargs)
    tasks = [FakeTask(name=name) for name in names.split()]
    for task in tasks:
        at.scheduler.submit(queue, task)
    while at.step() is not None:
        pass
    return tasks, runner


def test_one_bad_task_fails_alone() -> None:
    """A failed batch is halved until the task at fault is found."""
    tasks, runner = run_with(Fixture(), "a b c bad d e f g")
    assert [task.name for task in tasks if task.outcome != task.name] == ["bad"]
    assert len(runner.sizes) == 1 + 2 * 3


def test_two_bad_tasks_fail_alone() -> None:
    """There are runs enough for two of them in different halves."""
    tasks, _ = run_with(Fixture(), "a bad b c d e f g h bad i j k l m n")
    assert [task.name for task in tasks if task.outcome != task.name] == ["bad"] * 2


def test_a_model_that_always_fails_is_not_asked_again_and_again() -> None:
    """Runs per batch are bounded; after two fruitless searches most have three."""
    at = Fixture()
    runner = PuppetRunner(inline=True)
    runner.fails_on = lambda task: Internal("broken")
    queue, _ = at.add(runner, max_batch_rows=32)
    for num_runs in (25, 25, 3, 3, 25, 3):
        runner.sizes.clear()
        tasks = at.submit(queue, *[1] * 32)
        while at.step() is not None:
            pass
        assert len(runner.sizes) == num_runs
        assert all(task.error.message == "broken" for task in tasks)
    runner.fails_on = lambda task: None
    at.submit(queue, 1)
    at.step()
    assert queue.num_fruitless == 0


def test_bad_tasks_in_a_row_do_not_fail_those_that_come_after_them() -> None:
    """A client that sends nothing but bad requests for a while harms nobody later on."""
    at = Fixture()
    runner = PuppetRunner(inline=True)
    runner.fails_on = poison
    queue, _ = at.add(runner, max_batch_rows=8)

    def run(names: str) -> list[FakeTask]:
        tasks = [FakeTask(name=name) for name in names.split()]
        for task in tasks:
            at.scheduler.submit(queue, task)
        while at.step() is not None:
            pass
        return tasks

    for _ in range(5):
        run("bad bad bad bad")
    alone = run("bad good")
    assert [task.outcome for task in alone[1:]] == ["good"]
    for _ in range(3):
        many = run("a b bad c d e f g")
        assert [task.name for task in many if task.outcome != task.name] == ["bad"]


def test_errors_that_no_task_can_cause_are_not_retried() -> None:
    """UNAVAILABLE ends the batch, and so does the death of its interpreter, which the
    task at fault would repeat; so does anything if the policy says so.
    """
    at = Fixture()
    queue, runner = at.add()
    for error in (Unavailable("restarting"), InterpreterDied("killed")):
        tasks = at.submit(queue, 1, 1)
        at.step()
        runner.fail(error)
        assert [task.error for task in tasks] == [error] * 2
    _, runner = run_with(at, "a bad", policy=QueuePolicy(retries_alone=None))
    assert runner.sizes == [[1, 1]]


def test_a_retry_leaves_out_who_gave_up() -> None:
    """Cancelled and expired members leave before a retry as before a first run."""
    at = Fixture()
    queue, runner = at.add()
    late = FakeTask(name="late", deadline_s=START_S + 1.0)
    gone, stays = FakeTask(name="gone"), FakeTask(name="stays")
    for task in (late, gone, stays):
        at.scheduler.submit(queue, task)
    at.step()
    gone.cancel.cancel(Cancelled("gone"))
    at.clock.advance(1.0)
    runner.fail(Internal("x"))
    runner.finish()
    assert runner.names[-1] == ["stays"]
    assert isinstance(late.error, DeadlineExceeded)
    assert isinstance(gone.error, Cancelled)
    assert stays.outcome == "stays"


def test_per_task_errors_fail_their_task_only() -> None:
    """A runner may answer each task by itself."""
    at = Fixture()
    queue, runner = at.add()
    good, bad = at.submit(queue, 1, 1)
    at.step()
    runner.running.pop().done(["fine", InvalidArgument("row 0")])
    assert (good.outcome, bad.error.message) == ("fine", "row 0")
    assert runner.sizes == [[1, 1]]


def test_a_runner_that_miscounts_fails_its_batch() -> None:
    """Where outcomes cannot be told apart, every task fails: nobody gets another's
    outcome.
    """
    at = Fixture()
    queue, runner = at.add()
    tasks = at.submit(queue, 1, 1)
    at.step()
    runner.running.pop().done(["only one"])
    assert [task.error.message for task in tasks] == [
        "batch queue: 1 outcomes for 2 tasks"
    ] * 2


@pytest.mark.parametrize("outcomes", [None, 3, {}, "xyz"])
def test_outcomes_that_are_no_list_fail_the_batch(outcomes: Any) -> None:
    """No task waits for ever because of a faulty runner, and the device is free."""
    at = Fixture()
    queue, runner = at.add()
    tasks = at.submit(queue, 1, 1)
    at.step()
    runner.running.pop().done(outcomes)
    assert [type(task.error) for task in tasks] == [Internal, Internal]
    assert at.scheduler.num_in_flight == 0


def test_outcomes_may_come_one_by_one() -> None:
    """Whatever can be iterated over is as good as a list."""
    at = Fixture()
    queue, runner = at.add()
    tasks = at.submit(queue, 1, 1)
    at.step()
    runner.running.pop().done(iter(["a", "b"]))  # type: ignore[arg-type]
    assert [task.outcome for task in tasks] == ["a", "b"]


def test_a_runner_that_raises_ends_its_batch() -> None:
    """run raising counts as done with the error."""

    class Raising:
        def run(self, batch: Batch[FakeTask]) -> None:
            raise ValueError("cannot start")

    at = Fixture()
    queue: SharedQueue[FakeTask] = at.scheduler.add_queue(Raising())
    (task,) = at.submit(queue, 1)
    at.step()
    assert "cannot start" in task.error.message
    assert at.scheduler.num_in_flight == 0


def test_a_batch_is_done_once() -> None:
    """A second done raises and changes nothing."""
    at = Fixture()
    queue, runner = at.add()
    (task,) = at.submit(queue, 1)
    at.step()
    batch = runner.running[0]
    runner.finish()
    with pytest.raises(RuntimeError, match="twice"):
        batch.done(["again"])
    assert task.outcome == "done"


def test_a_callback_that_raises_harms_nobody_else() -> None:
    """The others of the batch still hear."""

    def raising(outcome: object) -> None:
        raise ValueError("caller's fault")

    at = Fixture()
    queue, runner = at.add()
    at.scheduler.submit(queue, FakeTask(on_done=raising))
    (task,) = at.submit(queue, 1)
    at.step()
    runner.finish()
    assert task.outcome == "done"


def test_a_step_ends_even_if_callers_always_come_back() -> None:
    """Batches computed inside run do not keep the loop from its sockets."""
    at = Fixture(max_batches_per_step=5)
    queue, runner = at.add(PuppetRunner(inline=True))

    def again(outcome: object) -> None:
        at.scheduler.submit(queue, FakeTask(on_done=again))

    at.scheduler.submit(queue, FakeTask(on_done=again))
    assert at.step() == at.clock.now()
    assert len(runner.sizes) == 5


def test_batches_are_padded_to_the_next_allowed_size() -> None:
    """A batch is padded to the least allowed size that holds it (batching_session_test:
    AllowedBatchSizesNoPaddingNeeded, ...RequirePadding).
    """
    at = Fixture()
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
    at = Fixture()
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
        at = Fixture()
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
    at = Fixture(num_batch_threads=2)
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
    at = Fixture()
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


def test_the_oldest_first_order_counts_fullness() -> None:
    """In the order of age, a full batch counts as older by the boost
    (adaptive_shared_batch_scheduler_test: FullBatchSchedulingBoostMicros, FIFO).
    """
    for boost_s, order in ((0.0, [2, 9, 10, 5]), (3.0, [9, 10, 2, 5])):
        at = Fixture(order=Order.OLDEST, full_batch_boost_s=boost_s)
        blocker, blocker_runner = at.add()
        at.submit(blocker, 1)
        at.step()
        runner = PuppetRunner(inline=True)
        for rows in (2, 9, 10, 5):
            at.submit(at.add(runner)[0], rows)
            at.step()
            at.clock.advance(1.0 if rows < 10 else 0.9)
        blocker_runner.finish()
        assert [size for (size,) in runner.sizes] == order


def test_what_waited_and_ran_is_counted() -> None:
    """Sizes, waits and device time per queue."""
    at = Fixture()
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
    assert queue.waiting.s_per_row > 0


@pytest.mark.parametrize("num", [1, 2, 8, 32, 64])
def test_times_of_short_batches_show_from_the_first_on(num: int) -> None:
    """Some stand for all of a size, and ten requests are enough to see them."""
    at = Fixture()
    queue, runner = at.add()
    for _ in range(num):
        at.submit(queue, 1)
        at.step()
        at.clock.advance(50e-6)
        runner.finish()
    assert queue.stats.execution().num == num
    assert queue.stats.execution().mean == pytest.approx(50e-6)
    assert queue.waiting.s_per_row == pytest.approx(50e-6)


def test_waiting_behind_another_batch_is_not_device_time() -> None:
    """On a serial device batches in flight are charged from when it was their turn."""
    at = Fixture(num_batch_threads=2)
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


def test_a_window_and_splitting_exclude_each_other() -> None:
    """A window ranks whole tasks."""
    with pytest.raises(FailedPrecondition):
        Fixture().add(policy=QueuePolicy(window=WindowOptions()), splits=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_batch_threads": 0}, "num_batch_threads must be positive; was 0"),
        ({"quantum_s": 0.0}, "quantum_s must be positive"),
        ({"full_batch_boost_s": -1.0}, "boost_micros can't be negative"),
    ],
)
def test_scheduler_options_that_cannot_work_are_refused(
    options: dict[str, Any], message: str
) -> None:
    """Options that no scheduler could follow are refused when they are made
    (adaptive_shared_batch_scheduler_test: BadOptions).
    """
    with pytest.raises(InvalidArgument, match=message):
        SchedulerOptions(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"weight": 0.0},
        {"weight": 1e-310},
        {"weight": float("inf")},
        {"weight": float("nan")},
        {"max_in_flight": 0},
    ],
)
def test_policies_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    """Options are checked when made."""
    with pytest.raises(InvalidArgument):
        QueuePolicy(**options)


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
        at = Fixture()
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


def test_a_batch_may_be_ended_by_one_call() -> None:
    """Its tasks end by the function, after the next batch began, and are counted."""
    at = Fixture(num_batch_threads=1)
    queue, runner = at.add(max_batch_rows=2)
    tasks = at.submit(queue, 1, 1, 1)
    at.step()
    (batch,) = runner.running
    ended: list[Any] = []

    def end_all(tasks: Any) -> None:
        ended.append((list(tasks), at.scheduler.num_in_flight))
        raise ValueError("is logged")

    batch.done(end_all)
    assert ended == [(tasks[:2], 1)]
    assert [task.is_waiting for task in tasks] == [True, True, True]
    with pytest.raises(RuntimeError):
        batch.done(end_all)


# -- a task that need not be queued ------------------------------------------------------


def test_a_task_computed_past_its_queue_counts_as_a_batch_of_it() -> None:
    """Counts, times, learned costs and shares are those of a batch of one."""
    durations_s = [0.00001, 0.0002, 0.003, 0.02] * 30
    seen = []
    for is_alone in (True, False):
        at = Fixture(quantum_s=0.01)
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
                queue.waiting.s_per_row,
                queue.padded,
            )
        )
        assert queue.credit_s > -0.02  # what nobody else wanted is not owed
    assert seen[0] == seen[1]


def test_a_task_is_queued_where_others_would_have_to_wait_for_it() -> None:
    """Past its queue goes only what its turn would have come to at once."""
    at = Fixture(num_batch_threads=2)
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
    at = Fixture()
    queue, _ = at.add(policy=QueuePolicy(window=WindowOptions()))
    assert at.scheduler.begin_now(queue, 1) is None
