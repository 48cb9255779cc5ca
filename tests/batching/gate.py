"""A batch function that a test holds up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sized
from typing import Generic, TypeVar

from tfs.testing.patience import PATIENCE_S

Batch = TypeVar("Batch", bound=Sized)


class Gate(Generic[Batch]):
    """Computes only when let; notes the sizes of its batches. Thread-safe.

    Attributes:
        open: Set by the test: from then on everything passes.
        entered: Set when the first batch has come.
        sizes: Rows or items of each batch, in the order in which they came.

    """

    def __init__(self, compute: Callable[[Batch], Batch]) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()
        self.sizes: list[int] = []
        self._compute = compute

    def __call__(self, batch: Batch) -> Batch:
        self.sizes.append(len(batch))
        self.entered.set()
        assert self.open.wait(PATIENCE_S)
        return self._compute(batch)
