"""A fleet's state in one SQLite file, for the processes of one machine."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from typing import Final

from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import FailedPrecondition, Unavailable
from tfs.hosted.store.state_store import SCHEMA, Transaction

_BUSY_S: Final = 10.0


class SqliteStore:
    """Implements :class:`~tfs.hosted.store.state_store.StateStore`.

    Commits are on disk before they are acknowledged: a write-ahead log, synchronous.

    Args:
        path: The file, made when first used; its folder exists, on a local disk.
        clock: Dates changes and leases.

    """

    def __init__(self, path: str, clock: Clock | None = None) -> None:
        self.name = path
        self._clock = clock or MonotonicClock()
        # Guards the next two, and is held while SQLite works; leaf.
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None

    @contextlib.contextmanager
    def begin(self, *, writes: bool) -> Iterator[Transaction]:
        with self._lock:
            try:
                connection = self._open_locked()
                connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
                try:
                    yield Transaction(
                        lambda statement, *values: connection.execute(
                            statement, values
                        ).fetchall(),
                        self._clock.wall_s(),
                    )
                    connection.execute("COMMIT")
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                self._close_locked()
                raise self._unusable(error) from error

    def close(self) -> None:
        with self._lock:
            self._close_locked()

    def _open_locked(self) -> sqlite3.Connection:
        # If somebody removes the file or puts another in its place, that one counts.
        if self._connection is not None and self._file == _identity(self.name):
            return self._connection
        self._close_locked()
        self._connection = connection = sqlite3.connect(
            self.name, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        for statement in SCHEMA:
            connection.execute(statement)
        connection.execute("COMMIT")
        self._file = _identity(self.name)
        return connection

    def _close_locked(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _unusable(self, error: sqlite3.Error) -> FailedPrecondition | Unavailable:
        why, folder = str(error), os.path.dirname(os.path.abspath(self.name))
        if not os.path.isdir(folder):
            why = f"there is no folder {folder}; make it first"
        kind = Unavailable if "locked" in why else FailedPrecondition
        return kind(f"the fleet's store {self.name}: {why}")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
