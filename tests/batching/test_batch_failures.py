"""Tasks that fail, are cancelled or are computed badly, and what becomes of their batch."""

from __future__ import annotations

from typing import Any

import pytest

from batching.batch import Batch
from tests.batching.fakes import FakeTask, PuppetRunner
from tests.batching.stepped_scheduler import START_S, SteppedScheduler
from tfs.core.batch.batch_queue import BatchQueue
from tfs.core.errors import (
    Cancelled,
    DeadlineExceeded,
    Internal,
    InterpreterDied,
    InvalidArgument,
    Unavailable,
)


def test_a_cancelled_task_costs_no_compute() -> None:
    """It leaves when its batch is formed, with its own reason."""
    at = SteppedScheduler()
    queue, runner = at.add()
    gone, stays = at.submit(queue, 2, 3)
    gone.cancel.cancel(Cancelled("gone"))
    at.step()
    assert runner.sizes == [[3]]
    assert isinstance(gone.error, Cancelled)
    assert stays.is_waiting


def poison(task: FakeTask) -> Internal | None:
    return Internal("bad row") if task.name == "bad" else None


def run_with(at: SteppedScheduler, names: str, **kwargs: Any) -> tuple[Any, Any]:
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
    tasks, runner = run_with(SteppedScheduler(), "a b c bad d e f g")
    assert [task.name for task in tasks if task.outcome != task.name] == ["bad"]
    assert len(runner.sizes) == 1 + 2 * 3


@pytest.mark.parametrize("num_bad", [2, 3, 5, 8, 15, 16])
def test_however_many_bad_tasks_fail_alone(num_bad: int) -> None:
    """The search costs runs, but it never gives a task the error of another."""
    at = SteppedScheduler()
    runner = PuppetRunner(inline=True)
    runner.fails_on = lambda task: (
        Internal(task.name) if task.name.startswith("bad") else None
    )
    queue, _ = at.add(runner, max_batch_rows=64)
    names = [f"bad {i}" if i * num_bad % 16 < num_bad else f"{i}" for i in range(16)]
    tasks = [FakeTask(name=name) for name in names]
    for task in tasks:
        at.scheduler.submit(queue, task)
    while at.step() is not None:
        pass
    assert len(runner.sizes) < 2 * len(tasks)
    for task in tasks:
        if task.name.startswith("bad"):
            assert task.error.message == task.name
        else:
            assert task.outcome == task.name


def test_a_model_that_always_fails_is_called_as_often_as_without_a_queue() -> None:
    """After one search, tasks run one by one until one of them succeeds."""
    at = SteppedScheduler()
    runner = PuppetRunner(inline=True)
    runner.fails_on = lambda task: Internal("broken")
    queue, _ = at.add(runner, max_batch_rows=32)
    for num_runs in (63, 32, 32):
        runner.sizes.clear()
        tasks = at.submit(queue, *[1] * 32)
        while at.step() is not None:
            pass
        assert len(runner.sizes) == num_runs
        assert all(task.error.message == "broken" for task in tasks)
    runner.fails_on = lambda task: None
    runner.sizes.clear()
    tasks = at.submit(queue, *[1] * 32)
    while at.step() is not None:
        pass
    assert [sum(sizes) for sizes in runner.sizes] == [1, 31]


def test_bad_tasks_in_a_row_do_not_fail_those_that_come_after_them() -> None:
    """A client that sends nothing but bad requests for a while harms nobody later on."""
    at = SteppedScheduler()
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
    task at fault would repeat.
    """
    at = SteppedScheduler()
    queue, runner = at.add()
    for error in (Unavailable("restarting"), InterpreterDied("killed")):
        tasks = at.submit(queue, 1, 1)
        at.step()
        runner.fail(error)
        assert [task.error for task in tasks] == [error] * 2


def test_a_retry_leaves_out_who_gave_up() -> None:
    """Cancelled and expired members leave before a retry as before a first run."""
    at = SteppedScheduler()
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
    at = SteppedScheduler()
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
    at = SteppedScheduler()
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
    at = SteppedScheduler()
    queue, runner = at.add()
    tasks = at.submit(queue, 1, 1)
    at.step()
    runner.running.pop().done(outcomes)
    assert [type(task.error) for task in tasks] == [Internal, Internal]
    assert at.scheduler.num_in_flight == 0


def test_outcomes_may_come_one_by_one() -> None:
    """Whatever can be iterated over is as good as a list."""
    at = SteppedScheduler()
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

    at = SteppedScheduler()
    queue: BatchQueue[FakeTask] = at.scheduler.add_queue(Raising())
    (task,) = at.submit(queue, 1)
    at.step()
    assert "cannot start" in task.error.message
    assert at.scheduler.num_in_flight == 0


def test_a_batch_is_done_once() -> None:
    """A second done raises and changes nothing."""
    at = SteppedScheduler()
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

    at = SteppedScheduler()
    queue, runner = at.add()
    at.scheduler.submit(queue, FakeTask(on_done=raising))
    (task,) = at.submit(queue, 1)
    at.step()
    runner.finish()
    assert task.outcome == "done"


def test_a_step_ends_even_if_callers_always_come_back() -> None:
    """Batches computed inside run do not keep the loop from its sockets."""
    at = SteppedScheduler(max_batches_per_step=5)
    queue, runner = at.add(PuppetRunner(inline=True))

    def again(outcome: object) -> None:
        at.scheduler.submit(queue, FakeTask(on_done=again))

    at.scheduler.submit(queue, FakeTask(on_done=again))
    assert at.step() == at.clock.now()
    assert len(runner.sizes) == 5


def test_a_batch_may_be_ended_by_one_call() -> None:
    """Its tasks end by the function, after the next batch began, and are counted."""
    at = SteppedScheduler(num_batch_threads=1)
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
