"""How queues share a device: options of the scheduler and of each queue's share."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from batching.deadline_window import WindowOptions
from tfs.core.errors import Code, InterpreterDied, InvalidArgument, ServingError

_ISOLATED = frozenset(
    {
        Code.INVALID_ARGUMENT,
        Code.OUT_OF_RANGE,
        Code.FAILED_PRECONDITION,
        Code.UNKNOWN,
        Code.INTERNAL,
    }
)


def may_be_one_rows_fault(error: ServingError) -> bool:
    """Whether a batch that failed so may succeed without one of its tasks.

    Not if nobody computed it (UNAVAILABLE, CANCELLED and the like), nor if its
    interpreter died over it.
    """
    return not isinstance(error, InterpreterDied) and error.code in _ISOLATED


class Order(enum.Enum):
    """Which of the queues with a batch goes first.

    FAIR: round robin, each gets its weight's share of the device's time, O(1).
    OLDEST: the one whose oldest task waited longest, whatever its share, O(queues);
    full batches may get a bonus.
    """

    FAIR = "fair"
    OLDEST = "oldest"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """How a device is shared. Immutable.

    Attributes:
        num_batch_threads: Most batches handed to the device and not finished.
        serial: Whether the device runs one batch at a time, so that batches in
            flight beyond the first only wait there; tells device time from waiting.
        quantum_s: Device time that a queue of weight 1 may use per round, and the
            most that one which was idle may have saved up. More favours queues that
            come in bursts, less keeps others from waiting for them.
        order: Which queue is next.
        full_batch_boost_s: OLDEST only: a full batch counts as this much older, a
            half full one as half of it.
        max_batches_per_step: After as many, ``step`` returns so that a loop can read
            its sockets even if batches are computed while it runs them.

    """

    num_batch_threads: int = 1
    serial: bool = True
    quantum_s: float = 0.02
    order: Order = Order.FAIR
    full_batch_boost_s: float = 0.0
    max_batches_per_step: int = 64

    def __post_init__(self) -> None:
        for what in ("num_batch_threads", "max_batches_per_step", "quantum_s"):
            value = getattr(self, what)
            if not value > 0:
                raise InvalidArgument(f"{what} must be positive; was {value}")
        if not self.full_batch_boost_s >= 0:
            raise InvalidArgument(
                "full_batch_scheduling_boost_micros can't be negative; was "
                f"{self.full_batch_boost_s} s"
            )


class Padding(enum.Enum):
    """What to do with a batch between two allowed sizes.

    UP: pad to the next. DOWN: take only what fills the one below, the rest stays.
    CHEAPEST: whichever costs less device time per row, by measurement; until there is
    one, UP. With UP and CHEAPEST a batch is padded further where a larger allowed
    size was measured to be cheaper.
    """

    UP = "up"
    DOWN = "down"
    CHEAPEST = "cheapest"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """How one queue is treated among others. Immutable.

    Attributes:
        weight: Its share of the device's time, relative to the others'.
        max_in_flight: Most of its batches on the device; None: the device's limit.
        padding: What to do between allowed sizes.
        window: Chooses by deadlines what is worth computing; None: arrival order.
        retries_alone: Tells whether a failed batch is run again in halves, to find
            the task at fault; None for never.

    """

    weight: float = 1.0
    max_in_flight: int | None = None
    padding: Padding = Padding.UP
    window: WindowOptions | None = None
    retries_alone: Callable[[ServingError], bool] | None = may_be_one_rows_fault

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise InvalidArgument(f"weight must be positive; was {self.weight}")
        if self.max_in_flight is not None and self.max_in_flight < 1:
            raise InvalidArgument(
                f"max_in_flight must be positive; was {self.max_in_flight}"
            )
