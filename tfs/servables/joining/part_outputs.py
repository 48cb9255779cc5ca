"""The outputs of a request that is computed in parts, put together as the parts end.

Each part is copied to its place when it comes. To join all parts when the last one had
come held the serving loop up: for 60 MB, 50 to 80 ms. What is put together can never be
changed, so that an answer is sent from where it lies.

Rejected: to have another thread join the parts. That keeps Python's lock for as long
unless it is done in portions, and the parts have to wait in memory beside the result.
"""

from __future__ import annotations

import math
import mmap
from typing import Final

from tfs.core.dtype import STRING
from tfs.core.servable import Tensors
from tfs.core.tensor_view import TensorView, concatenate

_LARGE_BYTES: Final = 1 << 20  # fewer are joined at the end, within half a millisecond
_COPIED_BYTES: Final = 1 << 20  # at a time; between two, other threads have their turn


class PartOutputs:
    """Takes the outputs of a request's parts, in any order. Confined to one thread at a time.

    Args:
        num_rows: The rows of the whole request.

    """

    __slots__ = ("_num_rows", "_tensors")

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        self._tensors: dict[str, _Pages | _Views] | None = None

    def add(self, start: int, outputs: Tensors) -> None:
        """Takes the outputs of the part whose first row is ``start``.

        Large ones are copied, so that the part's memory can go.

        Raises:
            KeyError: An output is missing that another part has.
            ValueError: An output does not fit to those of other parts.

        """
        tensors = self._tensors
        if tensors is None:
            tensors = self._tensors = {
                name: self._begin(view) for name, view in outputs.items()
            }
        for name, tensor in tensors.items():
            tensor.add(start, outputs[name])

    def whole(self) -> Tensors:
        """Returns the outputs of the request, once all parts were taken.

        Raises:
            ValueError: Outputs do not fit together.

        """
        tensors = self._tensors or {}
        return {name: tensor.whole() for name, tensor in tensors.items()}

    def _begin(self, view: TensorView) -> _Pages | _Views:
        if view.dtype is not STRING and view.shape and view.shape[0] < self._num_rows:
            row_bytes = math.prod(view.shape[1:]) * view.dtype.item_bytes
            if row_bytes * self._num_rows >= _LARGE_BYTES:
                return _Pages(view, row_bytes, self._num_rows)
        return _Views()


class _Views:
    """Parts that are joined at the end."""

    __slots__ = ("_views",)

    def __init__(self) -> None:
        self._views: dict[int, TensorView] = {}

    def add(self, start: int, view: TensorView) -> None:
        self._views[start] = view

    def whole(self) -> TensorView:
        return concatenate([self._views[start] for start in sorted(self._views)])


class _Pages:
    """Memory for the whole tensor, which the system provides as parts are copied to it."""

    __slots__ = ("_first", "_num_left", "_pages", "_row_bytes", "_shape")

    def __init__(self, first: TensorView, row_bytes: int, num_rows: int) -> None:
        self._first = TensorView(first.dtype, first.shape, b"")
        self._num_left = num_rows
        self._row_bytes = row_bytes
        self._shape = (num_rows, *first.shape[1:])
        self._pages = memoryview(
            mmap.mmap(
                -1, num_rows * row_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            )
        )

    def add(self, start: int, view: TensorView) -> None:
        first = self._first
        if view.dtype is not first.dtype or view.shape[1:] != first.shape[1:]:
            raise ValueError(f"cannot concatenate {first!r} and {view!r}")
        part, pages = memoryview(view.buffer), self._pages
        offset = start * self._row_bytes
        for begin in range(0, len(part), _COPIED_BYTES):
            piece = part[begin : begin + _COPIED_BYTES]
            pages[offset + begin : offset + begin + len(piece)] = piece
        self._num_left -= view.shape[0]

    def whole(self) -> TensorView:
        if self._num_left:
            raise ValueError(f"{self._num_left} rows are missing of {self._shape[0]}")
        return TensorView(self._first.dtype, self._shape, self._pages.toreadonly())
