"""The tables of a store and the statements on them, which both SQL stores share.

``entry`` has the rows, ``change`` their changes, ``cell`` the last revision and ``lease``
who leads. The revision is taken by an update of the one row of ``cell`` within the
transaction. Its lock makes writers wait for each other, so revisions become visible in
their order. (A number from a sequence would be taken before the commit: a reader could
see 2 before 1, and never look for 1 again.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from tfs.core.errors import Aborted
from tfs.hosted.store.state_store import KEPT_REVISIONS, Change, Feed, Lease

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
"""Begins the kind of rows that are no changes; :func:`read_feed` leaves them out."""

_COMPACT_EVERY: Final = 1000

_LONGEST: Final = 10.0
"""A lease that has more than so many times of what is asked for left was taken before the
clock was set back. Nobody would lead until the clock is there again, so it is free."""

Execute = Callable[[str, Sequence[object]], Iterable[Any]]
"""Runs a statement with ``?`` for its parameters; returns the rows."""


class SqlTransaction:
    """Implements :class:`~tfs.hosted.store.state_store.Transaction`.

    Args:
        execute: Runs statements of one transaction that excludes other writers.
        now_s: The time, for its changes.

    Attributes:
        revision: The revision that it makes; 0 while it has changed nothing.

    """

    def __init__(self, execute: Execute, now_s: float) -> None:
        self._execute = execute
        self._now_s = now_s
        self.revision = 0

    def get(self, kind: str, key: str) -> str | None:
        for wanted in (kind, EXPIRING + kind):
            for row in self._execute(
                "SELECT value FROM entry WHERE kind = ? AND key = ?", (wanted, key)
            ):
                return str(row[0])
        return None

    def feed(self, after: int) -> Feed:
        return read_feed(self._execute, after)

    def put(self, kind: str, key: str, value: str | None, why: str = "") -> int:
        if not self.revision:
            (row,) = self._execute(
                "UPDATE cell SET revision = revision + 1 RETURNING revision", ()
            )
            self.revision = int(row[0])
            if self.revision % _COMPACT_EVERY == 0:
                self._compact(self.revision - KEPT_REVISIONS)
        if value is None:
            self._execute("DELETE FROM entry WHERE kind = ? AND key = ?", (kind, key))
        else:
            self._write(kind, key, value, self.revision)
        self._execute(
            "INSERT INTO change VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (revision, kind, "
            "key) DO UPDATE SET value = excluded.value, why = excluded.why",
            (self.revision, kind, key, value, why, self._now_s),
        )
        return self.revision

    def put_expiring(self, kind: str, key: str, value: str) -> None:
        revision = self.revision or last_revision(self._execute)
        self._write(EXPIRING + kind, key, value, revision)

    def check(self, lease: Lease) -> None:
        """Returns if a lease is still held; Aborted otherwise."""
        for holder, epoch in self._execute(
            "SELECT holder, epoch FROM lease WHERE name = ?", (lease.name,)
        ):
            if (holder, epoch) == (lease.holder, lease.epoch):
                return
            raise Aborted(
                f"{lease.holder} does not lead {lease.name} any more: {holder} does"
            )
        raise Aborted(f"nobody leads {lease.name}")

    def acquire(self, name: str, holder: str, ttl_s: float) -> Lease | None:
        """Does as :meth:`~tfs.hosted.store.state_store.StateStore.acquire`."""
        epoch = 0
        for row in self._execute(
            "SELECT holder, epoch, expires_s FROM lease WHERE name = ?", (name,)
        ):
            had, epoch, expires_s = row
            if had == holder and expires_s > self._now_s:
                break
            if had and 0 < expires_s - self._now_s <= _LONGEST * ttl_s:
                return None
            epoch += 1
            break
        self._execute(
            "INSERT INTO lease VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET "
            "holder = excluded.holder, epoch = excluded.epoch, "
            "expires_s = excluded.expires_s",
            (name, holder, epoch, self._now_s + ttl_s),
        )
        return Lease(name, holder, epoch)

    def release(self, lease: Lease) -> None:
        """Does as :meth:`~tfs.hosted.store.state_store.StateStore.release`."""
        self._execute(
            "UPDATE lease SET expires_s = 0 WHERE name = ? AND holder = ? AND epoch = ?",
            (lease.name, lease.holder, lease.epoch),
        )

    def _write(self, kind: str, key: str, value: str, revision: int) -> None:
        self._execute(
            "INSERT INTO entry VALUES (?, ?, ?, ?) ON CONFLICT (kind, key) DO UPDATE "
            "SET value = excluded.value, revision = excluded.revision",
            (kind, key, value, revision),
        )

    def _compact(self, before: int) -> None:
        self._execute("DELETE FROM change WHERE revision <= ?", (before,))
        self._execute(
            "DELETE FROM entry WHERE kind LIKE ? AND revision <= ?",
            (EXPIRING + "%", before),
        )


def last_revision(execute: Execute) -> int:
    """Returns the number of the last revision; 0 before the first."""
    (row,) = execute("SELECT revision FROM cell", ())
    return int(row[0])


def read_feed(execute: Execute, after: int) -> Feed:
    """Does as :meth:`~tfs.hosted.store.state_store.StateStore.feed`, in one snapshot."""
    last = last_revision(execute)
    if after == last:
        return Feed(last, (), is_snapshot=False)
    (row,) = execute("SELECT COUNT(*) FROM change WHERE revision = ?", (after + 1,))
    if 0 < after < last and row[0]:
        rows = execute(
            "SELECT revision, kind, key, value, why, at_s FROM change "
            "WHERE revision > ? ORDER BY revision",
            (after,),
        )
        return Feed(last, [Change(*each) for each in rows], is_snapshot=False)
    rows = execute(
        "SELECT revision, kind, key, value FROM entry WHERE kind NOT LIKE ?",
        (EXPIRING + "%",),
    )
    return Feed(last, [Change(*each) for each in rows], is_snapshot=True)


def read_history(execute: Execute, most: int, kind: str, key: str) -> list[Change]:
    """Does as :meth:`~tfs.hosted.store.state_store.StateStore.history`."""
    wanted = "WHERE kind = ? AND key = ? " if kind else "WHERE why <> '' "
    values = (kind, key) if kind else ()
    rows = execute(
        "SELECT revision, kind, key, value, why, at_s FROM change "
        f"{wanted}ORDER BY revision DESC, kind LIMIT ?",
        (*values, most),
    )
    return [Change(*each) for each in rows]
