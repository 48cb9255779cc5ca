"""A fleet's state in PostgreSQL, for controllers on many machines."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, Final, TypeVar

from tfs.core.errors import FailedPrecondition, Unavailable
from tfs.hosted.store.sql_rows import SCHEMA, SqlTransaction, read_feed, read_history
from tfs.hosted.store.state_store import Change, Feed, Lease, Transaction

R = TypeVar("R")

_CONNECT_S: Final = 5
_CHANNEL: Final = "tfs_change"
# Two who make the tables at the same time would collide; this is no other lock's number.
_SCHEMA_LOCK: Final = 7_846_100


class PostgresStore:
    """Implements :class:`~tfs.hosted.store.state_store.StateStore`.

    The database's clock times leases. NOTIFY only wakes who waits; what changed is read
    from the tables.

    Args:
        url: "postgresql://USER@HOST/DATABASE", as libpq takes it, with several hosts and
            ``target_session_attrs=read-write`` where a standby may take over.

    Raises:
        FailedPrecondition: The extra is not installed.

    """

    def __init__(self, url: str) -> None:
        self._psycopg = _psycopg()
        self._url = url
        # Guards the next, and is held while the database works; leaf.
        self._lock = threading.Lock()
        self._connection: Any = None
        # Guards the connection that waits, and is held while it does; leaf.
        self._wait_lock = threading.Lock()
        self._waiting: Any = None

    @property
    def name(self) -> str:
        parts = self._psycopg.conninfo.conninfo_to_dict(self._url)
        parts.pop("password", None)
        return " ".join(f"{key}={value}" for key, value in parts.items())

    def transact(
        self, edit: Callable[[Transaction], R], lease: Lease | None = None
    ) -> R:
        with self._write() as transaction:
            if lease is not None:
                transaction.check(lease)
            return edit(transaction)

    def feed(self, after: int) -> Feed:
        begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        with self._begin(begin) as connection:
            return read_feed(_executing(connection), after)

    def history(self, most: int, kind: str = "", key: str = "") -> Sequence[Change]:
        with self._begin("BEGIN READ ONLY") as connection:
            return read_history(_executing(connection), most, kind, key)

    def wait(self, after: int, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        with self._wait_lock:
            try:
                if self._waiting is None:
                    self._waiting = self._connect()
                    self._waiting.execute(f"LISTEN {_CHANNEL}")
                (row,) = self._waiting.execute("SELECT revision FROM cell")
                left_s = deadline_s - time.monotonic()
                if row[0] <= after and left_s > 0:
                    for _ in self._waiting.notifies(timeout=left_s, stop_after=1):
                        pass
            except self._psycopg.Error as error:
                if self._waiting is not None:
                    self._waiting.close()
                self._waiting = None
                raise self._unreachable(error) from error

    def acquire(self, name: str, holder: str, ttl_s: float) -> Lease | None:
        with self._write() as transaction:
            return transaction.acquire(name, holder, ttl_s)

    def release(self, lease: Lease) -> None:
        with self._write() as transaction:
            transaction.release(lease)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None
        with self._wait_lock:
            if self._waiting is not None:
                self._waiting.close()
            self._waiting = None

    @contextlib.contextmanager
    def _write(self) -> Iterator[SqlTransaction]:
        with self._begin("BEGIN") as connection:
            execute = _executing(connection)
            # The lock comes first: every statement after it sees what the writer before
            # committed.
            (row,) = execute(
                "SELECT EXTRACT(EPOCH FROM clock_timestamp()) FROM cell FOR UPDATE", ()
            )
            transaction = SqlTransaction(execute, float(row[0]))
            yield transaction
            if transaction.revision:
                connection.execute(f"NOTIFY {_CHANNEL}")

    @contextlib.contextmanager
    def _begin(self, begin: str) -> Iterator[Any]:
        with self._lock:
            connection = self._begun_locked(begin)
            try:
                yield connection
                connection.execute("COMMIT")
            except self._psycopg.Error as error:
                self._drop_locked()
                raise self._unreachable(error) from error
            except BaseException:
                with contextlib.suppress(self._psycopg.Error):
                    connection.execute("ROLLBACK")
                raise

    def _begun_locked(self, begin: str) -> Any:
        for is_last in (False, True):
            try:
                if self._connection is None:
                    self._connection = self._connect()
                self._connection.execute(begin)
                return self._connection
            except self._psycopg.Error as error:
                # Nothing was done yet. The connection may have died while it was idle.
                was_open = self._connection is not None
                self._drop_locked()
                if is_last or not was_open:
                    raise self._unreachable(error) from error
        raise AssertionError("unreachable")

    def _connect(self) -> Any:
        connection = self._psycopg.connect(
            self._url, autocommit=True, connect_timeout=_CONNECT_S
        )
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_SCHEMA_LOCK,))
            (row,) = connection.execute("SELECT to_regclass('cell') IS NULL")
            for statement in SCHEMA if row[0] else ():
                connection.execute(statement)
        return connection

    def _drop_locked(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _unreachable(self, error: Exception) -> Unavailable:
        return Unavailable(
            f"the fleet's store {self.name}: {str(error).strip().splitlines()[0]}",
            retry_after_s=1.0,
        )


def _psycopg() -> ModuleType:
    try:
        import psycopg
    except ImportError as error:
        raise FailedPrecondition(
            "a store in PostgreSQL needs the extra: pip install 'tfs[postgres]'"
        ) from error
    module: ModuleType = psycopg
    return module


def _executing(connection: Any) -> Callable[[str, Sequence[object]], list[Any]]:
    def execute(statement: str, values: Sequence[object]) -> list[Any]:
        cursor = connection.execute(
            statement.replace("%", "%%").replace("?", "%s"), values
        )
        return list(cursor.fetchall()) if cursor.description else []

    return execute
