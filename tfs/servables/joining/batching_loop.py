"""The thread on which batches are formed, as batching servables see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class BatchingLoop(Protocol):
    """The scheduler's thread; see :class:`tfs.core.loop.serving_loop.ServingLoop`."""

    @property
    def is_loop_thread(self) -> bool:
        """Whether the caller runs on it."""
        ...

    def post(self, fn: Callable[[], None]) -> None:
        """Runs ``fn`` on it, followed by a step of the scheduler."""
        ...
