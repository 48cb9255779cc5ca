"""Counts requests of a batched signature that bypassed its queues."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class BypassCount:
    """Requests that bypassed a signature's queues. Written on the loop, read anywhere.

    Attributes:
        num_requests: Requests that were larger than a batch, fitted no queue or had no
            rows; counted when they come.
        num_rows: Rows of these tasks.
        num_calls: Calls of the servable that were made for them.

    """

    num_requests: int = 0
    num_rows: int = 0
    num_calls: int = 0

    def note(self, num_rows: int) -> None:
        """Counts a request; its calls are counted as they are made."""
        self.num_requests += 1
        self.num_rows += num_rows

    def add(self, other: BypassCount) -> None:
        """Adds the counts of another one."""
        self.num_requests += other.num_requests
        self.num_rows += other.num_rows
        self.num_calls += other.num_calls
