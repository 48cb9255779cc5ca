"""A fleet's state: rows changed in transactions, in SQL that all databases have, and a feed.

(The paper's Controller "keeps all its state in Spanner and manages it transactionally".)

A row has a kind, a key and a value, which is text. Every transaction that changes rows is
one revision; revisions are numbered in the order in which they are committed, without
gaps. ``entry`` has the rows, ``change`` their changes, ``cell`` the last revision and
``lease`` who leads. The revision is taken by an update of the one row of ``cell`` within
the transaction. Its lock makes writers wait for each other, so revisions become visible in
their order. (A number from a sequence would be taken before the commit: a reader could
see 2 before 1, and never look for 1 again.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from tfs.core.errors import Aborted

SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS cell (id INTEGER PRIMARY KEY, revision BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS entry (kind TEXT, key TEXT, value TEXT NOT NULL, "
    "revision BIGINT NOT NULL, PRIMARY KEY (kind, key))",
    "CREATE TABLE IF NOT EXISTS change (revision BIGINT, kind TEXT, key TEXT, value TEXT, "
    "why TEXT NOT NULL, at_s DOUBLE PRECISION NOT NULL, PRIMARY KEY (revision, kind, key))",
    "CREATE INDEX IF NOT EXISTS change_of ON change (kind, key, revision)",
    "CREATE TABLE IF NOT EXISTS lease (name TEXT PRIMARY KEY, holder TEXT NOT NULL, "
    "epoch BIGINT NOT NULL, expires_s DOUBLE PRECISION NOT NULL)",
    "INSERT INTO cell VALUES (1, 0) ON CONFLICT DO NOTHING",
)

EXPIRING: Final = "expiring:"
"""Begins the kind of rows that are no changes, and go after ``KEPT_REVISIONS``."""

KEPT_REVISIONS: Final = 100_000
"""Changes are kept for so many revisions."""

_COMPACT_EVERY: Final = 1000

_LONGEST: Final = 10.0
"""A lease that has more than so many times of what is asked for left was taken before the
clock was set back. Nobody would lead until the clock is there again, so it is free."""

Execute = Callable[..., Sequence[Any]]
"""Runs a statement with its values, one for each ``?``; returns the rows."""


@dataclass(frozen=True, slots=True)
class Change:
    """A row as one revision left it. Immutable."""

    revision: int
    kind: str
    key: str
    value: str | None  # None: the row was removed
    why: str = ""  # for people
    at_s: float = 0.0  # since the epoch


@dataclass(frozen=True, slots=True)
class Feed:
    """What changed since a revision. Immutable."""

    revision: int  # the latest; 0 before the first
    changes: Sequence[Change]  # up to it, in order
    # Whether they are all rows that there are instead, because the revision asked for is
    # none of this store, or too old.
    is_snapshot: bool


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to act for all under a name until somebody else has it. Immutable."""

    name: str
    holder: str
    epoch: int  # grows whenever it changes hands


class Transaction:
    """A transaction under way. For the thread that runs it, until it ends.

    Args:
        execute: Runs its statements.
        now_s: The time, for its changes and leases.

    Attributes:
        revision: The revision that it makes; 0 while it has changed nothing.

    """

    def __init__(self, execute: Execute, now_s: float) -> None:
        self._execute = execute
        self._now_s = now_s
        self.revision = 0

    def get(self, kind: str, key: str) -> str | None:
        """Returns the value of a row; None if there is none."""
        row = self._row("SELECT value FROM entry WHERE kind = ? AND key = ?", kind, key)
        return None if row is None else str(row[0])

    def last_revision(self) -> int:
        """Returns the number of the last revision; 0 before the first."""
        return int(self._execute("SELECT revision FROM cell")[0][0])

    def feed(self, after: int) -> Feed:
        """Returns what changed after a revision; 0 for everything."""
        last = self.last_revision()
        if after == last:
            return Feed(last, (), is_snapshot=False)
        is_there = "SELECT 1 FROM change WHERE revision = ?"
        if 0 < after < last and self._row(is_there, after + 1):
            rows = self._execute(
                "SELECT revision, kind, key, value, why, at_s FROM change "
                "WHERE revision > ? ORDER BY revision",
                after,
            )
            return Feed(last, [Change(*each) for each in rows], is_snapshot=False)
        rows = self._execute(
            "SELECT revision, kind, key, value FROM entry WHERE kind NOT LIKE ?",
            EXPIRING + "%",
        )
        return Feed(last, [Change(*each) for each in rows], is_snapshot=True)

    def history(self, most: int, kind: str, key: str) -> Sequence[Change]:
        """Returns the last changes of a row, or all that have a reason, newest first."""
        wanted = "WHERE kind = ? AND key = ? " if kind else "WHERE why <> '' "
        rows = self._execute(
            "SELECT revision, kind, key, value, why, at_s FROM change "
            f"{wanted}ORDER BY revision DESC, kind LIMIT ?",
            *((kind, key) if kind else ()),
            most,
        )
        return [Change(*each) for each in rows]

    def put(self, kind: str, key: str, value: str | None, why: str = "") -> int:
        """Makes, changes or (None) removes a row; returns the number of the revision."""
        if not self.revision:
            rows = self._execute(
                "UPDATE cell SET revision = revision + 1 RETURNING revision"
            )
            self.revision = int(rows[0][0])
            if self.revision % _COMPACT_EVERY == 0:
                self._compact(self.revision - KEPT_REVISIONS)
        if value is None:
            self._execute("DELETE FROM entry WHERE kind = ? AND key = ?", kind, key)
        else:
            self._write(kind, key, value, self.revision)
        self._execute(
            "INSERT INTO change VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (revision, kind, "
            "key) DO UPDATE SET value = excluded.value, why = excluded.why",
            *(self.revision, kind, key, value, why, self._now_s),
        )
        return self.revision

    def put_expiring(self, kind: str, key: str, value: str) -> None:
        """Makes a row of a kind that begins with ``EXPIRING``."""
        self._write(kind, key, value, self.revision or self.last_revision())

    def check(self, lease: Lease) -> None:
        """Raises Aborted if a lease is not held any more."""
        row = self._row("SELECT holder, epoch FROM lease WHERE name = ?", lease.name)
        if row is None:
            raise Aborted(f"nobody leads {lease.name}")
        if tuple(row) != (lease.holder, lease.epoch):
            raise Aborted(
                f"{lease.holder} does not lead {lease.name} any more: {row[0]} does"
            )

    def acquire(self, name: str, holder: str, ttl_s: float) -> Lease | None:
        """Takes a lease that nobody has, or renews it; None if somebody else has it."""
        had, epoch, expires_s = self._row(
            "SELECT holder, epoch, expires_s FROM lease WHERE name = ?", name
        ) or ("", -1, 0.0)
        if had != holder or expires_s <= self._now_s:
            if 0 < expires_s - self._now_s <= _LONGEST * ttl_s:
                return None
            epoch += 1
        self._execute(
            "INSERT INTO lease VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET "
            "holder = excluded.holder, epoch = excluded.epoch, "
            "expires_s = excluded.expires_s",
            *(name, holder, epoch, self._now_s + ttl_s),
        )
        return Lease(name, holder, epoch)

    def release(self, lease: Lease) -> None:
        """Gives a lease back before it expires, if it is still held."""
        self._execute(
            "UPDATE lease SET expires_s = 0 WHERE name = ? AND holder = ? AND epoch = ?",
            *(lease.name, lease.holder, lease.epoch),
        )

    def _row(self, statement: str, *values: object) -> Any:
        rows = self._execute(statement, *values)
        return rows[0] if rows else None

    def _write(self, kind: str, key: str, value: str, revision: int) -> None:
        self._execute(
            "INSERT INTO entry VALUES (?, ?, ?, ?) ON CONFLICT (kind, key) DO UPDATE "
            "SET value = excluded.value, revision = excluded.revision",
            *(kind, key, value, revision),
        )

    def _compact(self, before: int) -> None:
        self._execute("DELETE FROM change WHERE revision <= ?", before)
        self._execute(
            "DELETE FROM entry WHERE kind LIKE ? AND revision <= ?",
            *(EXPIRING + "%", before),
        )


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

    def close(self) -> None:
        """Closes connections; a later call opens them again."""
        ...
