"""How one model is batched: TensorFlow Serving's parameters, and ours.

The server reads ``--batching_parameters_file`` and ``batching_params.pbtxt``; this
module only has their fields, as plain numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from batching.cost_table import CostTable, Padding
from batching.deadline_window import WindowOptions
from tfs.core.batch.batch_queue_options import BatchQueueOptions
from tfs.core.errors import InvalidArgument

_DEFAULT_MAX_BATCH_SIZE = 1000
_DEFAULT_MAX_ENQUEUED_BATCHES = 10
_UNMEASURED_BATCH_ROWS = 32
_UNMEASURED_BATCH_BYTES = 8 << 20  # takes 2 ms to join
_MAX_WAITING_ROWS = 4096
# Some things are kept for each number of rows, which has to stay small. Joining more
# rows gains nothing.
_MAX_JOINED_ROWS = 1 << 14
_MAX_ALLOWED_ROWS = 1 << 20


_LEAST_WEIGHT: Final = 1e-6  # so that rounds can be counted


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """How a device is shared. Immutable.

    Attributes:
        num_batch_threads: Most batches handed to the device and not finished.
        serial: Whether the device runs one batch at a time, so that further batches in
            flight only wait there. Needed to tell device time from waiting time.
        quantum_s: Device time that a queue of weight 1 may use per round, and the most
            that an idle queue may save up. A larger value favours queues with bursts, a
            smaller one keeps others from waiting for them.
        max_batches_per_step: After this many batches ``step`` returns, so that a loop
            which computes batches itself still gets to read its sockets.

    """

    num_batch_threads: int = 1
    serial: bool = True
    quantum_s: float = 0.02
    max_batches_per_step: int = 64

    def __post_init__(self) -> None:
        for what in ("num_batch_threads", "max_batches_per_step", "quantum_s"):
            value = getattr(self, what)
            if not value > 0:
                raise InvalidArgument(f"{what} must be positive; was {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """How one queue is treated among others. Immutable.

    Attributes:
        weight: Its share of the device's time, relative to the others'.
        max_in_flight: Most of its batches on the device; None means the device's limit.
        padding: What to do between allowed sizes.
        window: Chooses by deadlines which tasks are worth computing; None takes tasks
            in order of arrival.

    """

    weight: float = 1.0
    max_in_flight: int | None = None
    padding: Padding = Padding.UP
    window: WindowOptions | None = None

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise InvalidArgument(f"weight must be positive; was {self.weight}")
        if not _LEAST_WEIGHT <= self.weight <= 1 / _LEAST_WEIGHT:
            raise InvalidArgument(
                f"weight must lie between {_LEAST_WEIGHT:g} and {1 / _LEAST_WEIGHT:g}; "
                f"was {self.weight}"
            )
        if self.max_in_flight is not None and self.max_in_flight < 1:
            raise InvalidArgument(
                f"max_in_flight must be positive; was {self.max_in_flight}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingOptions:
    """How the requests of one model are joined. Immutable.

    Attributes:
        queue: Limits and timeouts of each of its queues.
        policy: Weight, padding and retries of the queues.
        num_batch_threads: Most batches of a queue in flight; None lets the server
            decide.
        pads_variable_length: Whether inputs of different inner sizes are joined even
            if their signature gives no pad value; then each is padded with its own
            first element, as TensorFlow Serving does.
        length_buckets: Ascending sizes; requests whose padded dimension falls into the
            same bucket are joined and padded to its size. If empty, all are joined, and
            padded to the longest.
        max_lone_rows: A request with more rows than a batch, but not more than this, is
            computed as it is; 0 computes none so.
        in_stages: Whether the model is cut into stages if it can be, so that requests join
            a batch that is computed; what waits then waits where the model runs.
        batches_unproven: Whether to batch a signature although it was not shown that
            its rows are independent of each other.

    """

    queue: BatchQueueOptions = field(default_factory=BatchQueueOptions)
    policy: QueuePolicy = field(default_factory=QueuePolicy)
    num_batch_threads: int | None = None
    pads_variable_length: bool = False
    length_buckets: tuple[int, ...] = ()
    max_lone_rows: int = 0
    in_stages: bool = False
    batches_unproven: bool = False

    def __post_init__(self) -> None:
        if self.num_batch_threads is not None and self.num_batch_threads < 1:
            raise InvalidArgument(
                f"num_batch_threads must be positive; was {self.num_batch_threads}"
            )
        if self.policy.window is not None and self.queue.splits:
            raise InvalidArgument(
                "a deadline window ranks whole requests: leave out "
                "enable_large_batch_splitting"
            )
        if self.in_stages and (
            self.policy.window is not None
            or self.queue.timeout_s
            or self.length_buckets
        ):
            raise InvalidArgument(
                "layered mode waits for nobody and joins what came in one length: leave "
                "out batch_timeout_micros, deadline_window and length_buckets"
            )
        buckets = self.length_buckets
        if any(a >= b for a, b in pairwise((0, *buckets))):
            raise InvalidArgument(
                f"length_buckets must be positive and increase; were {list(buckets)}"
            )

    def bounded(self, max_rows: int) -> BatchingOptions:
        """Returns options by which no batch has more than ``max_rows`` rows.

        Requests with more rows that were admitted before still are: they are spread
        over batches if these options split them, and else computed as they are.
        """
        queue = self.queue
        lone = self.max_lone_rows
        if queue.splits:
            lone = min(lone, max_rows)
        if max_rows >= queue.max_batch_rows:
            return replace(self, max_lone_rows=lone)
        allowed = [rows for rows in queue.allowed_rows if rows < max_rows]
        return replace(
            self,
            max_lone_rows=lone if queue.splits else queue.task_rows_limit,
            queue=replace(
                queue,
                max_batch_rows=max_rows,
                max_task_rows=queue.max_task_rows if queue.splits else max_rows,
                max_rows=queue.rows_limit,
                allowed_rows=(*allowed, max_rows) if queue.allowed_rows else (),
            ),
        )


def options_from_parameters(
    *,
    max_batch_size: int | None = None,
    batch_timeout_micros: int | None = None,
    max_enqueued_batches: int | None = None,
    num_batch_threads: int | None = None,
    allowed_batch_sizes: Sequence[int] = (),
    pad_variable_length_inputs: bool | None = None,
    enable_large_batch_splitting: bool | None = None,
    max_execution_batch_size: int | None = None,
    policy: QueuePolicy | None = None,
) -> BatchingOptions:
    """Returns what the fields of a ``BatchingParameters`` message ask for.

    None means that the message leaves out the field, and stands for TensorFlow
    Serving's default. ``policy`` is not TensorFlow Serving's.

    Raises:
        InvalidArgument: A field is out of range; in TensorFlow Serving's words if it
            refuses the same.

    """
    splits = bool(enable_large_batch_splitting)
    max_batch = _positive(
        "input_batch_size_limit", max_batch_size, _DEFAULT_MAX_BATCH_SIZE
    )
    timeout_micros = _not_negative("batch_timeout_micros", batch_timeout_micros)
    if max_enqueued_batches == 0 and not splits:
        max_enqueued_batches = 1  # as TensorFlow does
    num_enqueued = _positive(
        "max_enqueued_batches", max_enqueued_batches, _DEFAULT_MAX_ENQUEUED_BATCHES
    )
    if num_batch_threads is not None:
        _positive("num_batch_threads", num_batch_threads, 1)
    execution = max_batch
    if splits and max_execution_batch_size is not None:
        execution = _execution_rows(max_execution_batch_size, max_batch)
    allowed = tuple(allowed_batch_sizes)
    _check_allowed(allowed, max_batch, execution, splits=splits)
    max_lone = 0
    if not allowed and execution > _MAX_JOINED_ROWS:
        execution = _MAX_JOINED_ROWS
        max_lone = 0 if splits else max_batch
    return BatchingOptions(
        queue=BatchQueueOptions(
            max_batch_rows=execution,
            max_task_rows=execution if max_lone else max_batch,
            max_rows=max(num_enqueued * execution, 0 if max_lone else max_batch),
            timeout_s=timeout_micros / 1e6,
            allowed_rows=allowed,
            splits=splits,
        ),
        policy=policy or QueuePolicy(),
        num_batch_threads=num_batch_threads,
        pads_variable_length=bool(pad_variable_length_inputs),
        max_lone_rows=max_lone,
    )


def recommended_options(costs: CostTable, row_bytes: int = 0) -> BatchingOptions:
    """Returns options for a signature that nobody configured.

    Batches are as large as is worthwhile: the smallest size whose measured rows per
    second are within 3 % of the best. Larger requests are split, and nobody waits for a
    window.

    If batches were not compared with single rows, rows are joined only as long as
    copying them is quick, because requests of 10 MB to a model that does little took
    twice as long when joined. A single request with as many rows as would otherwise be
    joined is computed as it came.

    Args:
        costs: The times that were measured.
        row_bytes: How many bytes joining copies for each row; 0 if that is not known.

    """
    max_batch = costs.best_batch_rows() or _UNMEASURED_BATCH_ROWS
    max_lone = 0
    if 1 not in costs.sizes and row_bytes * max_batch > _UNMEASURED_BATCH_BYTES:
        max_lone = max_batch
        max_batch = max(1, _UNMEASURED_BATCH_BYTES // row_bytes)
    return BatchingOptions(
        max_lone_rows=max_lone,
        queue=BatchQueueOptions(
            max_batch_rows=max_batch,
            max_rows=max(_MAX_WAITING_ROWS, 10 * max_batch),
            splits=True,
        ),
    )


def _positive(what: str, value: int | None, default: int) -> int:
    if value is None:
        return default
    if value < 1:
        raise InvalidArgument(f"{what} must be positive; was {value}")
    return value


def _not_negative(what: str, value: int | None) -> int:
    if value is not None and value < 0:
        raise InvalidArgument(f"{what} must be non-negative; was {value}")
    return value or 0


def _execution_rows(max_execution_batch_size: int, max_batch: int) -> int:
    """Returns the most rows to compute together when requests are split."""
    execution = _positive("max_execution_batch_size", max_execution_batch_size, 1)
    if execution > max_batch:
        raise InvalidArgument(
            "max_execution_batch_size must be less than or equal to "
            f"max_batch_size; was {execution}, max_batch_size is {max_batch}"
        )
    return execution


def _check_allowed(
    allowed: Sequence[int], max_batch: int, execution: int, *, splits: bool
) -> None:
    """Refuses sizes that :class:`.BatchQueueOptions` cannot know to be wrong."""
    if not allowed:
        return
    last = allowed[-1]
    if last > _MAX_ALLOWED_ROWS:
        raise InvalidArgument(
            f"allowed_batch_sizes must not exceed {_MAX_ALLOWED_ROWS}; last entry was "
            f"{last}"
        )
    if splits and last > max_batch:
        raise InvalidArgument(
            "Last entry in allowed_batch_sizes must be less than or equal to "
            f"max_batch_size; last entry was {last}; expected {max_batch}"
        )
    if splits and last != execution:
        raise InvalidArgument(
            "Last entry in allowed_batch_sizes must be equal to "
            f"max_execution_batch_size; last entry was {last}; expected {execution}"
        )
