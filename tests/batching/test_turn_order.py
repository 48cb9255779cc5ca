"""Whose batch is next: queues share the device by time, weight and what they have due."""

from __future__ import annotations

import pytest

from batching.batching_options import QueuePolicy
from tests.batching.fakes import PuppetRunner
from tests.batching.stepped_scheduler import SteppedScheduler
from tfs.core.errors import (
    Cancelled,
)


def test_a_light_queue_goes_before_one_that_just_ran() -> None:
    """A queue that has used less of the device is served first
    (shared_batch_scheduler_test: Fairness).
    """
    at = SteppedScheduler()
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
    at: SteppedScheduler,
    batch_s: list[float],
    policies: list[QueuePolicy],
    num_batches: int,
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
    at = SteppedScheduler()
    used_s = run_backlogged(at, [0.1, 0.01], [QueuePolicy(), QueuePolicy()], 1000)
    assert used_s[0] == pytest.approx(used_s[1], rel=0.05)


def test_one_stall_does_not_keep_a_queue_from_the_device() -> None:
    """A first batch that compiled for a minute is not paid for with a minute of waiting.

    Batches that always take that long are: the device is shared by time.
    """
    at = SteppedScheduler()
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
    at = SteppedScheduler()
    used_s = run_backlogged(at, [10.0, 0.1], [QueuePolicy(), QueuePolicy()], 2000)
    assert used_s[0] == pytest.approx(used_s[1], rel=0.2)


def test_weights_share_the_device() -> None:
    """Weight 3 gets three times the device time of weight 1."""
    at = SteppedScheduler()
    policies = [QueuePolicy(weight=1.0), QueuePolicy(weight=3.0)]
    used_s = run_backlogged(at, [0.02, 0.03], policies, 1000)
    assert used_s[1] / used_s[0] == pytest.approx(3.0, rel=0.1)


def test_a_queue_alone_gets_everything() -> None:
    """Having used up its share delays nobody if nobody else waits."""
    at = SteppedScheduler(quantum_s=0.001)
    queue, runner = at.add(max_batch_rows=1)
    at.submit(queue, 1, 1, 1)
    at.step()
    for _ in range(3):
        at.clock.advance(1.0)
        runner.finish()
    assert len(runner.sizes) == 3


def test_rounds_pass_over_queues_that_have_nothing_due() -> None:
    """A queue whose tasks left while it waited for its round holds up nobody."""
    at = SteppedScheduler(quantum_s=0.001)
    first, first_runner = at.add(max_batch_rows=1)
    second, second_runner = at.add(max_batch_rows=1)
    (_, gone) = at.submit(first, 1, 1)
    at.submit(second, 1, 1)
    at.step()
    at.clock.advance(0.01)
    first_runner.finish()  # owes ten rounds
    at.clock.advance(0.1)
    gone.cancel.cancel(Cancelled("gone"))
    first.drop_dead(at.clock.now())
    second_runner.finish()  # owes a hundred, and is all there is
    assert len(second_runner.sizes) == 2
