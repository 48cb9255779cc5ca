"""A fleet's state: rows changed in transactions, and a feed of the changes.

(The paper's Controller "keeps all its state in Spanner and manages it transactionally".)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from tfs.hosted.store.transaction import Change, Feed, Lease, Transaction

R = TypeVar("R")


class Database(Protocol):
    """The port for where the rows are. Thread-safe; calls block on it.

    Implementors promise:

    1. transactions that write run one after the other, whoever runs them, and see what
       those before them did; one that does not write sees one moment;
    2. what was committed is on disk;
    3. Unavailable is raised if it cannot be reached, FailedPrecondition if it cannot be
       used.
    """

    @property
    def name(self) -> str:
        """How messages call it; without a password."""
        ...

    def begin(self, *, writes: bool) -> AbstractContextManager[Transaction]:
        """Begins a transaction, which ends with the block: undone if that raises."""
        ...

    def wait(self, after: int, timeout_s: float) -> None:
        """Does as :meth:`StateStore.wait`."""
        ...

    def close(self) -> None:
        """Closes connections; a later call opens them again."""
        ...


class StateStore:
    """A fleet's state. Thread-safe; calls block on the database, and raise what that raises.

    A feed read from the last revision that was seen misses no change. A lease has one
    holder at a time, and an epoch is given out once.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.name = database.name

    def transact(
        self, edit: Callable[[Transaction], R], lease: Lease | None = None
    ) -> R:
        """Runs ``edit`` in a transaction, commits it, and returns its result.

        If it raises, nothing happened.

        Raises:
            Aborted: Somebody else has the lease; nothing happened.

        """
        with self._database.begin(writes=True) as transaction:
            if lease is not None:
                transaction.check(lease)
            return edit(transaction)

    def feed(self, after: int) -> Feed:
        """Returns what changed after a revision; 0 for everything."""
        with self._database.begin(writes=False) as transaction:
            return transaction.feed(after)

    def history(self, most: int, kind: str = "", key: str = "") -> Sequence[Change]:
        """Returns the last changes of a row, or all that have a reason, newest first."""
        with self._database.begin(writes=False) as transaction:
            return transaction.history(most, kind, key)

    def wait(self, after: int, timeout_s: float) -> None:
        """Returns when there is a later revision, or at the timeout; may return early."""
        self._database.wait(after, timeout_s)

    def acquire(self, name: str, holder: str, ttl_s: float) -> Lease | None:
        """Takes a lease that nobody has, or renews it; None if somebody else has it."""
        return self.transact(lambda each: each.acquire(name, holder, ttl_s))

    def release(self, lease: Lease) -> None:
        """Gives a lease back before it expires, if it is still held."""
        self.transact(lambda each: each.release(lease))

    def close(self) -> None:
        """Closes connections; a later call opens them again."""
        self._database.close()
