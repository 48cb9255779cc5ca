"""What is counted of a signature's requests, whatever queues join them by now."""

from __future__ import annotations

from dataclasses import dataclass, field

from tfs.core.batch.queue_stats import QueueStats

MAX_KEYS = 64
"""Most queues of a signature, whatever number of shapes a client invents."""


@dataclass(slots=True)
class SignatureCounts:
    """The counts of one signature of a version. Written on the loop, read anywhere.

    They outlive the queues: a version that moves to another place gets new queues, which
    count on here.

    Attributes:
        by_key: What queues have counted, by what their requests have in common.
        dropped: The sum of queues whose shapes are no longer requested.
        num_past: Requests that bypassed the queues: larger than a batch, fitting no queue
            or without rows; counted when they come.
        num_past_rows: Rows of these.
        num_past_calls: Calls of the servable that were made for them.

    """

    by_key: dict[object, QueueStats] = field(default_factory=dict)
    dropped: QueueStats = field(default_factory=QueueStats)
    num_past: int = 0
    num_past_rows: int = 0
    num_past_calls: int = 0

    def note_past(self, num_rows: int) -> None:
        """Counts a request past the queues; its calls are counted as they are made."""
        self.num_past += 1
        self.num_past_rows += num_rows

    def stats_of(self, key: object) -> QueueStats:
        """Returns what the queue of that key counts in."""
        return self.by_key.setdefault(key, QueueStats())

    def drop(self, key: object) -> None:
        """Adds the counts of a queue that is gone to those of all such."""
        self.dropped.add(self.by_key.pop(key))

    def total(self) -> QueueStats:
        """Returns the sum over all queues, present and former."""
        total = QueueStats()
        for each in (*list(self.by_key.values()), self.dropped):
            total.add(each)
        return total
