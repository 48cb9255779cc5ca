"""A fleet's state in PostgreSQL, for controllers on many machines."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tfs.core.errors import FailedPrecondition, InvalidArgument, Unavailable
from tfs.hosted.store.state_store import SCHEMA, Transaction

_CONNECT_S: Final = 5
# Two who make the tables at the same time would collide; this is no other lock's number.
_SCHEMA_LOCK: Final = 7_846_100


class PostgresStore:
    """Implements :class:`~tfs.hosted.store.state_store.StateStore`.

    The database's clock times leases.

    Args:
        url: "postgresql://USER@HOST/DATABASE", as libpq takes it, with several hosts and
            ``target_session_attrs=read-write`` where a standby may take over.

    Raises:
        FailedPrecondition: The extra is not installed.
        InvalidArgument: The URL is none.

    """

    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise FailedPrecondition(
                "a store in PostgreSQL needs the extra: pip install 'tfs[postgres]'"
            ) from error
        self._psycopg = psycopg
        try:
            parts = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.Error as error:
            raise InvalidArgument(f"the fleet's store: {error}") from error
        parts.pop("password", None)
        self.name = " ".join(f"{key}={value}" for key, value in parts.items())
        self._url = url
        # Guards the next, and is held while the database works; leaf.
        self._lock = threading.Lock()
        self._connection: Any = None

    @contextlib.contextmanager
    def begin(self, *, writes: bool) -> Iterator[Transaction]:
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = self._connect()
                connection = self._connection
                level = self._psycopg.IsolationLevel
                connection.isolation_level = (
                    level.READ_COMMITTED if writes else level.REPEATABLE_READ
                )
                with connection.transaction():
                    # The lock comes first: every statement after it sees what the writer
                    # before committed.
                    (row,) = connection.execute(
                        "SELECT EXTRACT(EPOCH FROM clock_timestamp()) FROM cell"
                        + (" FOR UPDATE" if writes else "")
                    )
                    transaction = Transaction(_executing(connection), float(row[0]))
                    yield transaction
            except self._psycopg.Error as error:
                self._close_locked()
                raise self._unreachable(error) from error

    def close(self) -> None:
        with self._lock:
            self._close_locked()

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

    def _close_locked(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _unreachable(self, error: Exception) -> Unavailable:
        return Unavailable(
            f"the fleet's store {self.name}: {str(error).strip().splitlines()[0]}",
            retry_after_s=1.0,
        )


def _executing(connection: Any) -> Any:
    def execute(statement: str, *values: object) -> Sequence[Any]:
        cursor = connection.execute(statement.replace("?", "%s"), values)
        return cursor.fetchall() if cursor.description else ()

    return execute
