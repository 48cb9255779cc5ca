"""A store that can be away, or end its process at a chosen moment."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from tfs.core.errors import Unavailable
from tfs.hosted.store.state_store import Database, StateStore
from tfs.hosted.store.transaction import Lease, Transaction

R = TypeVar("R")


class FailingStore(StateStore):
    """A store over a database that fails.

    Attributes:
        is_away: Whether every call raises Unavailable.
        crash_at: The process kills itself at so manieth a step; 0: never. Each change
            has two steps: before it is made, and when it is on disk.
        num_steps: How many steps there were.

    """

    def __init__(self, database: Database) -> None:
        super().__init__(_Failing(database, self))
        self.is_away = False
        self.crash_at = 0
        self.num_steps = 0

    def transact(
        self, edit: Callable[[Transaction], R], lease: Lease | None = None
    ) -> R:
        if self.is_away:
            raise Unavailable("the store is away")
        self._step()
        result = super().transact(edit, lease)
        self._step()
        return result

    def acquire(self, name: str, holder: str, ttl_s: float) -> Lease | None:
        return StateStore.transact(self, lambda each: each.acquire(name, holder, ttl_s))

    def _step(self) -> None:
        self.num_steps += 1
        if self.num_steps == self.crash_at:
            os.kill(os.getpid(), signal.SIGKILL)


class _Failing:
    """Implements :class:`~tfs.hosted.store.state_store.Database` by another one."""

    def __init__(self, database: Database, store: FailingStore) -> None:
        self._database, self._store = database, store
        self.name = database.name

    def begin(self, *, writes: bool) -> AbstractContextManager[Transaction]:
        self._check()
        return self._database.begin(writes=writes)

    def wait(self, after: int, timeout_s: float) -> None:
        self._check()
        self._database.wait(after, timeout_s)

    def close(self) -> None:
        self._database.close()

    def _check(self) -> None:
        if self._store.is_away:
            raise Unavailable("the store is away")
