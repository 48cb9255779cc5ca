"""A store that can be away, or end its process at a chosen moment."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import TypeVar

from tfs.core.errors import Unavailable
from tfs.hosted.store.state_store import (
    Change,
    Feed,
    Lease,
    StateStore,
    Transaction,
)

R = TypeVar("R")


class FailingStore:
    """Implements :class:`~tfs.hosted.store.state_store.StateStore` by another one.

    Attributes:
        is_away: Whether every call raises Unavailable.
        crash_at: The process kills itself at so manieth a step; 0: never. Each change
            has two steps: before it is made, and when it is on disk.
        num_steps: How many steps there were.

    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self.is_away = False
        self.crash_at = 0
        self.num_steps = 0

    @property
    def name(self) -> str:
        return self._store.name

    def transact(
        self, edit: Callable[[Transaction], R], lease: Lease | None = None
    ) -> R:
        self._check()
        self._step()
        result = self._store.transact(edit, lease)
        self._step()
        return result

    def feed(self, after: int) -> Feed:
        self._check()
        return self._store.feed(after)

    def history(self, most: int, kind: str = "", key: str = "") -> Sequence[Change]:
        self._check()
        return self._store.history(most, kind, key)

    def wait(self, after: int, timeout_s: float) -> None:
        self._check()
        self._store.wait(after, timeout_s)

    def acquire(self, name: str, holder: str, ttl_s: float) -> Lease | None:
        self._check()
        return self._store.acquire(name, holder, ttl_s)

    def release(self, lease: Lease) -> None:
        self._check()
        self._store.release(lease)

    def close(self) -> None:
        self._store.close()

    def _check(self) -> None:
        if self.is_away:
            raise Unavailable("the store is away")

    def _step(self) -> None:
        self.num_steps += 1
        if self.num_steps == self.crash_at:
            os.kill(os.getpid(), signal.SIGKILL)
