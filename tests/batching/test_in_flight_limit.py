"""Policies that find the number of batches in flight."""

from __future__ import annotations

import random
from typing import Any

import pytest

from batching.in_flight_limit import (
    AdaptiveLimit,
    AdaptiveOptions,
    SerialDeviceLimit,
    SerialDeviceOptions,
)
from batching.scheduler_options import SchedulerOptions
from batching.shared_scheduler import SharedBatchScheduler
from tests.batching.fakes import FakeTask, PuppetRunner
from tfs.core.batch.batch_queue_options import BatchQueueOptions
from tfs.core.errors import InvalidArgument
from tfs.testing.fake_clock import FakeClock


def test_the_scheduler_obeys_the_limit() -> None:
    """No more batches are in flight than the limit says
    (adaptive_shared_batch_scheduler_test: InFlightBatchesLimit).
    """
    limit = AdaptiveLimit(AdaptiveOptions(initial=2.0))
    scheduler = SharedBatchScheduler(
        SchedulerOptions(num_batch_threads=8), FakeClock(), limit
    )
    runner = PuppetRunner()
    queue = scheduler.add_queue(runner, BatchQueueOptions(max_batch_rows=1))
    for _ in range(4):
        scheduler.submit(queue, FakeTask())
    scheduler.step(0.0)
    assert len(runner.running) == 2


@pytest.mark.parametrize("best", [2.0, 20.0])
def test_the_limit_climbs_to_where_latency_is_least(best: float) -> None:
    """The limit moves to where tasks wait least (adaptive_shared_batch_scheduler_test:
    InFlightBatchesLimitTuning).
    """
    limit = AdaptiveLimit(AdaptiveOptions(initial=8.0, num_batches=10))
    for _ in range(4000):
        limit.note_done(1.0 + abs(limit.limit - best) / 40)
    assert limit.limit == pytest.approx(best, rel=0.15)


def test_the_search_starts_afresh_when_the_load_changes() -> None:
    """Small steps would take for ever to follow."""
    limit = AdaptiveLimit(AdaptiveOptions(initial=8.0, num_batches=1))
    for best in (2.0, 30.0):
        for _ in range(400):
            limit.note_done(1.0 + abs(limit.limit - best) / (best / 2))
        assert limit.limit == pytest.approx(best, rel=0.2)


def test_the_limit_stays_within_its_bounds() -> None:
    """The limit keeps within its bounds, even if more would look better."""
    limit = AdaptiveLimit(AdaptiveOptions(initial=3.0, max=4.0, num_batches=1))
    for _ in range(50):
        limit.note_done(1.0 / limit.limit)
    assert 1.0 <= limit.limit <= 4.0


def test_a_fraction_is_applied_by_chance() -> None:
    """2.25 is 3 for a quarter of the batches."""
    limit = AdaptiveLimit(AdaptiveOptions(initial=2.25), random.Random(1))
    drawn = [limit.current() for _ in range(4000)]
    assert set(drawn) == {2, 3}
    assert sum(drawn) / len(drawn) == pytest.approx(2.25, abs=0.03)


def test_a_serial_device_is_kept_just_busy() -> None:
    """A serial device gets as many batches as keep it busy, and no more
    (serial_device_batch_scheduler_test: PendingOnSerialDevice,
    InFlightBatchesLimit).
    """
    pending = [0]
    options = SerialDeviceOptions(
        pending=lambda: pending[0], target_pending=2, initial=1, num_batches=1
    )
    limit = SerialDeviceLimit(options)
    assert limit.current() == 1
    limit.note_done(1.0)
    assert limit.current() == 3
    pending[0] = 3
    limit.note_done(1.0)
    assert limit.current() == 2
    pending[0] = 99
    limit.note_done(1.0)
    assert limit.current() == 1


def test_a_serial_device_without_work_gets_no_more_slots() -> None:
    """If there often was no batch to run, more slots would only split batches."""
    limit = SerialDeviceLimit(
        SerialDeviceOptions(pending=lambda: 0, initial=2, num_batches=10)
    )
    for _ in range(10):
        limit.note_idle()
        limit.note_done(1.0)
    assert limit.current() == 2
    for _ in range(10):
        limit.note_done(1.0)
    assert limit.current() == 4


@pytest.mark.parametrize(
    "options",
    [
        {"initial": 0.0},
        {"min": 0.5},
        {"max": 2.0},
        {"num_batches": 0},
        {"min": 4.0},
    ],
)
def test_adaptive_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    """Options that contradict each other are refused when they are made
    (adaptive_shared_batch_scheduler_test: BadOptions).
    """
    with pytest.raises(InvalidArgument):
        AdaptiveOptions(**options)


@pytest.mark.parametrize(
    "options",
    [{"initial": 0}, {"target_pending": -1.0}, {"initial": 65}, {"num_batches": 0}],
)
def test_serial_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    """Options that contradict each other are refused when they are made
    (serial_device_batch_scheduler_test: BadOptions).
    """
    with pytest.raises(InvalidArgument):
        SerialDeviceOptions(pending=lambda: 0, **options)
