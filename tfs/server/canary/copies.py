"""Copies of the primary's requests, while they wait for the canary."""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from dataclasses import dataclass
from typing import Final

from tfs.core.servable import Outcome, Tensors
from tfs.core.tensor_view import TensorView

MAX_QUEUED: Final = 16
MAX_QUEUED_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Copy:
    """A request to the primary, and its outcome. Immutable; owns its bytes.

    Attributes:
        signature_name: Key of the signature.
        inputs: All inputs; none if the copy is void.
        output_filter: The outputs asked for; empty means all.
        num_rows: Rows of the request.
        size_bytes: Bytes of inputs and outcome.
        outcome: The primary's outcome; None until it has one.
        latency_s: How long the primary took.
        is_void: Whether the canary hung when the copy was taken; then it has no inputs.

    """

    signature_name: str
    inputs: Tensors
    output_filter: tuple[str, ...]
    num_rows: int
    size_bytes: int
    outcome: Outcome | None = None
    latency_s: float = 0.0
    is_void: bool = False


class CopyQueue:
    """Copies that wait, the oldest first. Guarded by its trial's lock."""

    def __init__(self) -> None:
        self._copies: deque[Copy] = deque()
        self._size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._copies)

    def has_room(self, size_bytes: int) -> bool:
        """Whether a copy of that size may be added."""
        return (
            len(self._copies) < MAX_QUEUED
            and self._size_bytes + size_bytes <= MAX_QUEUED_BYTES
        )

    def add(self, copied: Copy) -> None:
        """Adds a copy; requires that there is room."""
        self._copies.append(copied)
        self._size_bytes += copied.size_bytes

    def take(self) -> Copy:
        """Takes the oldest copy; requires that there is one."""
        copied = self._copies.popleft()
        self._size_bytes -= copied.size_bytes
        return copied

    def clear(self) -> None:
        """Drops all copies that wait."""
        self._copies.clear()
        self._size_bytes = 0


def owned(tensors: Tensors, names: Container[str] = ()) -> Tensors:
    """Returns tensors with bytes of their own, so that their buffers may change.

    Args:
        tensors: The tensors by name.
        names: The outputs that are wanted; empty means all.

    """
    return {
        name: _owned(view)
        for name, view in tensors.items()
        if not names or name in names
    }


def _owned(view: TensorView) -> TensorView:
    data = view.data
    if isinstance(data, bytes | tuple):
        return view
    return TensorView(view.dtype, view.shape, bytes(data))
