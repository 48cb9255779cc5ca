"""How queues share a device: options of the scheduler and of each queue's share."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from batching.deadline_window import WindowOptions
from tfs.core.errors import InvalidArgument

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


class Padding(enum.Enum):
    """What to do with a batch between two allowed sizes.

    UP: pad to the next size. DOWN: take only what fills the size below; the rest stays
    in the queue. CHEAPEST: whichever costs less device time per row by measurement; UP
    until there is a measurement. With UP and CHEAPEST a batch is padded even further if
    a larger allowed size was measured to be cheaper.
    """

    UP = "up"
    DOWN = "down"
    CHEAPEST = "cheapest"


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
