"""What a batch queue admits, and when its batches go."""

from __future__ import annotations

import enum
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Protocol

from tfs.core.batch.batch_task import Task, TaskT
from tfs.core.errors import InvalidArgument

NEVER: Final = math.inf
NOW: Final = -math.inf
"""Times at which a batch has to go."""


class Mixing(enum.Enum):
    """Whether tasks of low priority share a batch with others.

    ISOLATE: never. PAD_TO_ALLOWED: they fill a batch of high priority up to the next
    allowed size. PAD_TO_MAX: they fill it up to the largest size. With these three,
    tasks of low priority never make a batch due while others wait. MERGE: both classes
    count for when a batch is due, and tasks of high priority are taken first.
    """

    ISOLATE = "isolate"
    PAD_TO_ALLOWED = "pad-to-allowed"
    PAD_TO_MAX = "pad-to-max"
    MERGE = "merge"


@dataclass(frozen=True, slots=True, kw_only=True)
class LowPriority:
    """How the second class of a queue is treated. Immutable.

    Attributes:
        max_rows: Most rows of this class that may wait; with None only the queue's
            limit holds.
        timeout_s: The queue's ``timeout_s``, for batches of this class alone.
        mixing: Whether it shares batches.
        ageing_s: Tasks that have waited this long go before those of high priority,
            so that they cannot starve: every time if none of those wait, else in every
            fourth batch. None for never.

    """

    max_rows: int | None = None
    timeout_s: float = 0.0
    mixing: Mixing = Mixing.PAD_TO_MAX
    ageing_s: float | None = 1.0

    def __post_init__(self) -> None:
        if self.max_rows is not None and self.max_rows < 1:
            raise InvalidArgument(
                f"low priority: max_rows must be positive; was {self.max_rows}"
            )
        if self.timeout_s < 0:
            raise InvalidArgument(
                f"low priority: timeout_s must be non-negative; was {self.timeout_s}"
            )
        if self.ageing_s is not None and self.ageing_s < 0:
            raise InvalidArgument(
                f"low priority: ageing_s must be non-negative; was {self.ageing_s}"
            )

    def due_s(
        self, came_s: float, high_s: float, high_rows: int, low_rows: int, most: int
    ) -> float:
        """Returns when the next batch has to go while tasks of this class wait.

        Args:
            came_s: When the oldest of this class arrived.
            high_s: When the oldest of high priority has waited for long enough.
            high_rows: The rows of high priority that wait.
            low_rows: Those of this class.
            most: The rows of a full batch.

        """
        low_s = came_s + self.timeout_s
        if not high_rows:
            return NOW if low_rows >= most else low_s
        if self.mixing is Mixing.MERGE:
            return NOW if high_rows + low_rows >= most else min(high_s, low_s)
        aged_s = NEVER
        if self.ageing_s is not None:
            aged_s = came_s + max(self.ageing_s, self.timeout_s)
        return NOW if high_rows >= most else min(high_s, aged_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchQueueOptions:
    """What a queue admits and when its batches go. Immutable.

    Attributes:
        name: Names the queue in errors.
        max_batch_rows: Most rows of one batch.
        max_task_rows: Most rows of one task. None means those of a batch or, with
            ``splits``, as many as the queue holds.
        max_rows: Most rows that wait; None means ten batches.
        timeout_s: Longest that the oldest task waits for a batch to fill. With 0 a
            batch goes as soon as somebody takes it, so that nobody waits for a window.
        allowed_rows: Sizes that a batch is padded to, ascending, the last one
            ``max_batch_rows``; empty allows any size.
        splits: Whether a task may be spread over several batches, so that they are
            full.
        low: The class of low priority; with None there is none, and priorities are
            ignored.

    """

    name: str = "batch queue"
    max_batch_rows: int = 32
    max_task_rows: int | None = None
    max_rows: int | None = None
    timeout_s: float = 0.0
    allowed_rows: tuple[int, ...] = ()
    splits: bool = False
    low: LowPriority | None = field(default_factory=LowPriority)

    def __post_init__(self) -> None:
        for what in ("max_batch_rows", "max_task_rows", "max_rows"):
            value = getattr(self, what)
            if value is not None and value < 1:
                raise InvalidArgument(
                    f"{self.name}: {what} must be positive; was {value}"
                )
        if not self.timeout_s >= 0:
            raise InvalidArgument(
                f"{self.name}: timeout_s must be non-negative; was {self.timeout_s}"
            )
        if not self.splits and self.task_rows_limit > self.max_batch_rows:
            raise InvalidArgument(
                f"{self.name}: max_task_rows {self.max_task_rows} exceeds "
                f"max_batch_rows {self.max_batch_rows}; allow splitting"
            )
        allowed = self.allowed_rows
        if not allowed:
            return
        if any(a >= b for a, b in pairwise(allowed)):
            raise InvalidArgument(
                f"{self.name}: allowed_batch_sizes entries must be monotonically "
                f"increasing; were {list(allowed)}"
            )
        if allowed[0] < 1:
            raise InvalidArgument(
                f"{self.name}: allowed_batch_sizes must be positive; "
                f"were {list(allowed)}"
            )
        if allowed[-1] != self.max_batch_rows:
            raise InvalidArgument(
                f"{self.name}: Last entry in allowed_batch_sizes must match "
                f"max_batch_size; last entry was {allowed[-1]}; expected "
                f"{self.max_batch_rows}"
            )

    @property
    def rows_limit(self) -> int:
        """``max_rows`` with its default filled in."""
        return self.max_rows or 10 * self.max_batch_rows

    @property
    def task_rows_limit(self) -> int:
        """``max_task_rows`` with its default filled in."""
        if self.max_task_rows is not None:
            return self.max_task_rows
        return self.rows_limit if self.splits else self.max_batch_rows

    def next_allowed(self, num_rows: int) -> int:
        """Returns the smallest allowed size that holds ``num_rows``."""
        allowed = self.allowed_rows
        index = bisect_left(allowed, num_rows)
        return allowed[index] if index < len(allowed) else num_rows


class Window(Protocol):
    """Chooses the batches of one queue. Confined to the queue's thread.

    Attributes:
        ranks_low: Whether it chooses among both classes of priority. If not, tasks are
            taken as they came while some of low priority wait, or some that are larger
            than a batch.

    """

    ranks_low: bool

    def note_arrival(self, num_rows: int, now_s: float) -> None:
        """Notes that a task came in."""
        ...

    def choose(
        self, tasks: Sequence[TaskT], now_s: float
    ) -> tuple[Sequence[TaskT], Sequence[TaskT]]:
        """Returns the tasks of the next batch, and those to give up as too late.

        Args:
            tasks: All that wait: those of high priority first, each class as it came.
            now_s: The time now.

        """
        ...

    def observe(self, tasks: Sequence[Task], device_s: float) -> bool:
        """Learns how long a batch took; False if it is for others to learn."""
        ...
