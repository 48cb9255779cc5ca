"""A fleet's state in one SQLite file, for the processes of one machine."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import FailedPrecondition, Unavailable
from tfs.hosted.store.sql_rows import (
    SCHEMA,
    SqlTransaction,
    last_revision,
    read_history,
)
from tfs.hosted.store.state_store import Change, Feed, Lease, Transaction

R = TypeVar("R")

_BUSY_S: Final = 10.0
_LOOK_S: Final = 0.05  # for commits of other processes, which cost 10 µs to look for


class SqliteStore:
    """Implements :class:`~tfs.hosted.store.state_store.StateStore`.

    Commits are on disk before they are acknowledged: a write-ahead log, synchronous.

    Args:
        path: The file, made when first used; its folder exists, on a local disk.
        clock: Dates changes and leases.

    """

    def __init__(self, path: str, clock: Clock | None = None) -> None:
        self.path = path
        self._clock = clock or MonotonicClock()
        # Guards the next two, and is held while SQLite works; leaf.
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        # Notified when this store commits; leaf, guards nothing.
        self._committed = threading.Condition()

    @property
    def name(self) -> str:
        return self.path

    def transact(
        self, edit: Callable[[Transaction], R], lease: Lease | None = None
    ) -> R:
        with self._begin("IMMEDIATE") as transaction:
            if lease is not None:
                transaction.check(lease)
            result = edit(transaction)
        with self._committed:
            self._committed.notify_all()
        return result

    def feed(self, after: int) -> Feed:
        with self._begin("DEFERRED") as transaction:
            return transaction.feed(after)

    def history(self, most: int, kind: str = "", key: str = "") -> Sequence[Change]:
        with self._use() as connection:
            return read_history(_executing(connection), most, kind, key)

    def wait(self, after: int, timeout_s: float) -> None:
        deadline_s = self._clock.now() + timeout_s
        while (now_s := self._clock.now()) < deadline_s:
            with self._use() as connection:
                if last_revision(_executing(connection)) > after:
                    return
            with self._committed:
                self._clock.wait(self._committed, min(now_s + _LOOK_S, deadline_s))

    def acquire(self, name: str, holder: str, ttl_s: float) -> Lease | None:
        with self._begin("IMMEDIATE") as transaction:
            return transaction.acquire(name, holder, ttl_s)

    def release(self, lease: Lease) -> None:
        with self._begin("IMMEDIATE") as transaction:
            transaction.release(lease)

    def close(self) -> None:
        with self._lock:
            self._close_locked()

    @contextlib.contextmanager
    def _begin(self, how: str) -> Iterator[SqlTransaction]:
        with self._use() as connection:
            connection.execute(f"BEGIN {how}")
            try:
                yield SqlTransaction(_executing(connection), self._clock.wall_s())
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _use(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._open_locked()
            except sqlite3.Error as error:
                self._close_locked()
                raise self._unusable(error) from error

    def _open_locked(self) -> sqlite3.Connection:
        # If somebody removes the file or puts another in its place, that one counts.
        if self._connection is not None and self._file == _identity(self.path):
            return self._connection
        self._close_locked()
        self._connection = connection = sqlite3.connect(
            self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        for statement in SCHEMA:
            connection.execute(statement)
        connection.execute("COMMIT")
        self._file = _identity(self.path)
        return connection

    def _close_locked(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _unusable(self, error: sqlite3.Error) -> FailedPrecondition | Unavailable:
        why, folder = str(error), os.path.dirname(os.path.abspath(self.path))
        if not os.path.isdir(folder):
            why = f"there is no folder {folder}; make it first"
        kind = Unavailable if "locked" in why else FailedPrecondition
        return kind(f"the fleet's store {self.path}: {why}")


def _executing(
    connection: sqlite3.Connection,
) -> Callable[[str, Sequence[object]], list[Any]]:
    return lambda statement, values: connection.execute(
        statement, tuple(values)
    ).fetchall()


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
