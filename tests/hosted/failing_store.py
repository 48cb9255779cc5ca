"""A store that can be away, or end its process at a chosen moment."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

from tfs.core.errors import Unavailable
from tfs.hosted.store.state_store import StateStore, Transaction


class FailingStore:
    """Implements :class:`~tfs.hosted.store.state_store.StateStore` by another one.

    Attributes:
        is_away: Whether every call raises Unavailable.
        crash_at: The process kills itself at so manieth a step; 0: never. Each revision
            has two steps: before it is committed, and when it is on disk.
        num_steps: How many steps there were.

    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self.name = store.name
        self.is_away = False
        self.crash_at = 0
        self.num_steps = 0

    @contextlib.contextmanager
    def begin(self, *, writes: bool) -> Iterator[Transaction]:
        self._check()
        with self._store.begin(writes=writes) as transaction:
            yield transaction
            if transaction.revision:
                self._step()
        if transaction.revision:
            self._step()

    def close(self) -> None:
        self._store.close()

    def _step(self) -> None:
        self.num_steps += 1
        if self.num_steps == self.crash_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def _check(self) -> None:
        if self.is_away:
            raise Unavailable("the store is away")
