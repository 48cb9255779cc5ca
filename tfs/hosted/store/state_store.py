"""The port for a fleet's state: rows changed in transactions, and a feed of the changes.

A row has a kind, a key and a value, which is text. Every transaction that changes rows is
one revision; revisions are numbered in the order in which they are committed, without
gaps. (The paper's Controller "keeps all its state in Spanner and manages it
transactionally".)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

R = TypeVar("R")

KEPT_REVISIONS: Final = 100_000
"""Changes, and rows that expire, are kept for so many revisions."""


@dataclass(frozen=True, slots=True)
class Change:
    """A row as one revision left it. Immutable.

    Attributes:
        revision: The number of the revision.
        kind: The kind of the row.
        key: The key of the row.
        value: The new value; None if the row was removed.
        why: Why it was changed, for people.
        at_s: The time, in seconds since the epoch.

    """

    revision: int
    kind: str
    key: str
    value: str | None
    why: str = ""
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Feed:
    """What changed since a revision. Immutable.

    Attributes:
        revision: The latest revision; 0 before the first.
        changes: The changes up to it, in order.
        is_snapshot: Whether they are all rows that there are instead, because the
            revision asked for is none of this store, or too old.

    """

    revision: int
    changes: Sequence[Change]
    is_snapshot: bool


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to act for all under a name until somebody else has it. Immutable.

    Attributes:
        name: What it is for.
        holder: Who has it.
        epoch: Grows whenever it changes hands.

    """

    name: str
    holder: str
    epoch: int


class Transaction(Protocol):
    """A transaction under way. For the thread that runs it, until its edit returns."""

    def get(self, kind: str, key: str) -> str | None:
        """Returns the value of a row; None if there is none."""
        ...

    def feed(self, after: int) -> Feed:
        """Returns what changed after a revision, without this transaction's changes."""
        ...

    def put(self, kind: str, key: str, value: str | None, why: str = "") -> int:
        """Makes, changes or (None) removes a row; returns the number of the revision."""
        ...

    def put_expiring(self, kind: str, key: str, value: str) -> None:
        """Makes a row that is no change, and goes after ``KEPT_REVISIONS``."""
        ...


class StateStore(Protocol):
    """A fleet's state. Thread-safe; calls block on the store.

    Implementors promise:

    1. transactions that change rows run one after the other, whoever runs them;
    2. what ``transact`` returned for is on disk; if ``edit`` raises, nothing happened;
    3. a feed read from the last revision that was seen misses no change;
    4. a lease has one holder at a time, and an epoch is given out once.

    Every call raises Unavailable if the store cannot be reached, and FailedPrecondition
    if it cannot be used.
    """

    @property
    def name(self) -> str:
        """How messages call it; without a password."""
        ...

    def transact(
        self, edit: Callable[[Transaction], R], lease: Lease | None = None
    ) -> R:
        """Runs ``edit`` in a transaction, commits it, and returns its result.

        Raises:
            Aborted: Somebody else has the lease; nothing happened.

        """
        ...

    def feed(self, after: int) -> Feed:
        """Returns what changed after a revision; 0 for everything."""
        ...

    def history(self, most: int, kind: str = "", key: str = "") -> Sequence[Change]:
        """Returns the last changes of a row, or all that have a reason, newest first."""
        ...

    def wait(self, after: int, timeout_s: float) -> None:
        """Returns when there is a later revision, or at the timeout; may return early."""
        ...

    def acquire(self, name: str, holder: str, ttl_s: float) -> Lease | None:
        """Takes a lease that nobody has, or renews it; None if somebody else has it."""
        ...

    def release(self, lease: Lease) -> None:
        """Gives a lease back before it expires, if it is still held."""
        ...

    def close(self) -> None:
        """Closes connections; a later call opens them again."""
        ...
