"""TensorFlow Serving's batching parameters, and what is recommended without."""

from __future__ import annotations

from typing import Any

import pytest

from batching.batching_options import (
    BatchingOptions,
    QueuePolicy,
    SchedulerOptions,
    options_from_parameters,
    recommended_options,
)
from batching.cost_table import CostTable
from batching.deadline_window import WindowOptions
from tests.batching.stepped_scheduler import SteppedScheduler
from tfs.core.batch.batch_queue_options import LowPriority
from tfs.core.errors import (
    FailedPrecondition,
    InvalidArgument,
)


def test_an_empty_message_stands_for_the_defaults() -> None:
    """1000 rows, no window, ten batches, no splitting."""
    options = options_from_parameters()
    queue = options.queue
    assert (queue.max_batch_rows, queue.task_rows_limit) == (1000, 1000)
    assert (queue.timeout_s, queue.rows_limit) == (0.0, 10_000)
    assert (queue.splits, queue.allowed_rows) == (False, ())
    assert (options.num_batch_threads, options.pads_variable_length) == (None, False)


def test_every_field_is_taken_over() -> None:
    """Limits in batches become limits in rows, micros become seconds."""
    options = options_from_parameters(
        max_batch_size=64,
        batch_timeout_micros=2500,
        max_enqueued_batches=3,
        num_batch_threads=2,
        allowed_batch_sizes=[4, 16],
        pad_variable_length_inputs=True,
        enable_large_batch_splitting=True,
        max_execution_batch_size=16,
    )
    queue = options.queue
    assert (queue.max_batch_rows, queue.task_rows_limit) == (16, 64)
    assert (queue.timeout_s, queue.rows_limit) == (0.0025, 64)
    assert (queue.splits, queue.allowed_rows) == (True, (4, 16))
    assert (options.num_batch_threads, options.pads_variable_length) == (2, True)


def test_no_batch_is_larger_than_what_can_be_counted_by_its_rows() -> None:
    """Any size may be asked for; a request above the largest batch goes by itself."""
    options = options_from_parameters(max_batch_size=2**62)
    assert options.queue.max_batch_rows == options.queue.task_rows_limit == 2**14
    assert options.max_lone_rows == 2**62
    options = options_from_parameters(
        max_batch_size=2**20, enable_large_batch_splitting=True
    )
    assert options.queue.max_batch_rows == 2**14
    assert options.queue.task_rows_limit == 2**20
    assert options.max_lone_rows == 0
    with pytest.raises(InvalidArgument, match="must not exceed 1048576"):
        options_from_parameters(max_batch_size=2**40, allowed_batch_sizes=[2**40])


def test_no_enqueued_batch_means_one() -> None:
    """A queue of no batches would take nothing: 0 counts as 1
    (shared_batch_scheduler_test: ZeroQueueRewrittenToOneQueue).
    """
    options = options_from_parameters(max_batch_size=8, max_enqueued_batches=0)
    assert options.queue.rows_limit == 8


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_batch_size": 0}, "input_batch_size_limit must be positive; was 0"),
        (
            {"batch_timeout_micros": -1},
            "batch_timeout_micros must be non-negative; was -1",
        ),
        (
            {"max_enqueued_batches": 0, "enable_large_batch_splitting": True},
            "max_enqueued_batches must be positive; was 0",
        ),
        ({"num_batch_threads": 0}, "num_batch_threads must be positive; was 0"),
        (
            {"max_batch_size": 8, "allowed_batch_sizes": [2, 16]},
            "Last entry in allowed_batch_sizes must match max_batch_size; last entry "
            "was 16; expected 8",
        ),
        (
            {"max_batch_size": 8, "allowed_batch_sizes": [4, 2, 8]},
            "allowed_batch_sizes entries must be monotonically increasing",
        ),
        (
            {
                "max_batch_size": 8,
                "allowed_batch_sizes": [16],
                "enable_large_batch_splitting": True,
            },
            "Last entry in allowed_batch_sizes must be less than or equal to "
            "max_batch_size; last entry was 16; expected 8",
        ),
        (
            {
                "max_batch_size": 8,
                "max_execution_batch_size": 4,
                "allowed_batch_sizes": [2, 8],
                "enable_large_batch_splitting": True,
            },
            "Last entry in allowed_batch_sizes must be equal to "
            "max_execution_batch_size; last entry was 8; expected 4",
        ),
        (
            {
                "max_batch_size": 8,
                "max_execution_batch_size": 16,
                "enable_large_batch_splitting": True,
            },
            "max_execution_batch_size must be less than or equal to max_batch_size",
        ),
    ],
)
def test_what_tensorflow_serving_refuses_is_refused(
    fields: dict[str, Any], message: str
) -> None:
    """Bad options are refused in TensorFlow Serving's own words.

    batching_session_test: UnsortedAllowedBatchSizesRejected,
    FinalAllowedBatchSizeLargerThanMaxBatchSizeRejected.
    """
    with pytest.raises(InvalidArgument, match=message):
        options_from_parameters(**fields)


def test_recommended_batches_are_as_large_as_pays() -> None:
    """Batches are sized by the measured table, without a window and with splitting."""
    queue = recommended_options(CostTable({1: 1.0, 8: 2.0, 32: 10.0})).queue
    assert (queue.max_batch_rows, queue.timeout_s, queue.splits) == (8, 0.0, True)
    assert recommended_options(CostTable()).queue.max_batch_rows == 32


@pytest.mark.parametrize(
    ("row_bytes", "max_batch_rows", "max_lone_rows"),
    [(0, 32, 0), (16, 32, 0), (1 << 18, 32, 0), (602_112, 13, 32), (10 << 20, 1, 32)],
)
def test_unmeasured_batches_are_as_large_as_is_quickly_joined(
    row_bytes: int, max_batch_rows: int, max_lone_rows: int
) -> None:
    """What one request brings together needs no joining, and is not taken apart."""
    options = recommended_options(CostTable(), row_bytes=row_bytes)
    assert options.queue.max_batch_rows == max_batch_rows
    assert options.max_lone_rows == max_lone_rows


def test_one_measured_size_says_nothing_of_whether_joining_pays() -> None:
    """A load's budget may end behind the largest batch, which comes first."""
    costs = CostTable({32: 0.07})
    assert recommended_options(costs, row_bytes=16).queue.max_batch_rows == 32
    options = recommended_options(costs, row_bytes=10 << 20)
    assert (options.queue.max_batch_rows, options.max_lone_rows) == (1, 32)


def test_measured_batches_are_as_large_as_was_measured() -> None:
    """A measured batch may be of any size, because its time includes the joining."""
    options = recommended_options(CostTable({1: 1.0, 8: 2.0}), row_bytes=10 << 20)
    assert options.queue.max_batch_rows == 8
    assert options.max_lone_rows == 0


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        (BatchingOptions, "num_batch_threads", 0),
        (BatchingOptions, "length_buckets", (4, 2)),
        (BatchingOptions, "length_buckets", (0, 2)),
        (SchedulerOptions, "num_batch_threads", 0),
        (SchedulerOptions, "quantum_s", 0.0),
        (QueuePolicy, "weight", 0.0),
        (QueuePolicy, "weight", 1e-310),
        (QueuePolicy, "weight", float("inf")),
        (QueuePolicy, "weight", float("nan")),
        (QueuePolicy, "max_in_flight", 0),
        (LowPriority, "max_rows", 0),
        (LowPriority, "timeout_s", -0.1),
        (LowPriority, "ageing_s", -1.0),
    ],
)
def test_options_that_cannot_work_are_refused(
    options: type, name: str, value: object
) -> None:
    """Options are checked when made, and the error names the field
    (adaptive_shared_batch_scheduler_test: BadOptions).
    """
    with pytest.raises(InvalidArgument, match=name):
        options(**{name: value})


def test_a_window_and_splitting_exclude_each_other() -> None:
    """A window ranks whole tasks."""
    with pytest.raises(FailedPrecondition):
        SteppedScheduler().add(policy=QueuePolicy(window=WindowOptions()), splits=True)
