"""A fleet's state: rows changed in transactions, and a feed of the changes.

(The paper's Controller "keeps all its state in Spanner and manages it transactionally".)
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from tfs.hosted.store.transaction import Transaction


class StateStore(Protocol):
    """The port for where a fleet's state is. Thread-safe; calls block on it.

    Implementors promise:

    1. transactions that write run one after the other, whoever runs them, and see what
       those before them did; one that does not write sees one moment;
    2. what was committed is on disk;
    3. Unavailable is raised if it cannot be reached, FailedPrecondition if it cannot be
       used.

    So a feed read from the last revision that was seen misses no change, a lease has one
    holder at a time, and an epoch is given out once.
    """

    @property
    def name(self) -> str:
        """How messages call it; without a password."""
        ...

    def begin(self, *, writes: bool) -> AbstractContextManager[Transaction]:
        """Begins a transaction, which ends with the block: undone if that raises."""
        ...

    def wait(self, after: int, timeout_s: float) -> None:
        """Returns when there is a later revision, or at the timeout; may return early."""
        ...

    def close(self) -> None:
        """Closes connections; a later call opens them again."""
        ...
