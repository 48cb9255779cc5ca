"""The outputs of a request that is computed in parts, put together as the parts end.

Each part is copied to its place when it comes. To join all parts when the last one had
come held the serving loop up: for 60 MB, 50 to 80 ms. What is put together can never be
changed, so that an answer is sent from where it lies.

A part of more than two megabytes is copied two at a time, in as many rounds of the loop:
20 MB at once held it up for 13 ms. Nearly all of that is the system's, which provides
the memory.

Rejected: to have another thread join the parts. That keeps Python's lock for as long
unless it is done in portions, and the parts have to wait in memory beside the result.
Huge pages: they take a third of the time, but looking for one took the system 25 ms now
and then.
"""

from __future__ import annotations

import itertools
import math
import mmap
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from tfs.core.batch.batch_task import TakeRest
from tfs.core.dtype import STRING
from tfs.core.servable import Tensors
from tfs.core.tensor_view import TensorView, concatenate
from tfs.servables.joining.batching_loop import BatchingLoop
from tfs.servables.joining.tensor_join import cut_inner

_LARGE_BYTES: Final = 1 << 20  # fewer are joined at the end, within half a millisecond
_COPIED_BYTES: Final = 1 << 20  # at a time; between two, other threads have their turn
_NUM_AT_ONCE: Final = 2  # copies; then the loop does something else


class PartOutputs:
    """Takes the outputs of a request's parts, in any order. Confined to one thread at a time.

    Args:
        num_rows: The rows of the whole request.
        loop: What must not be held up, if parts come on its thread.
        wanted: Names of the outputs that the request asked for; empty means all. Parts
            may come with further ones, and not all with the same.
        padded: Names of the outputs whose inner sizes depend on the batch in which a part
            was computed. What some parts answer beyond the others is for padding, and is
            cut off.

    """

    __slots__ = (
        "_loop",
        "_num_rows",
        "_padded",
        "_tensors",
        "_waiting",
        "_wanted",
    )

    def __init__(
        self,
        num_rows: int,
        loop: BatchingLoop | None = None,
        wanted: Sequence[str] = (),
        *,
        padded: Container[str] = (),
    ) -> None:
        self._num_rows = num_rows
        self._padded = padded
        self._loop = loop
        self._wanted = wanted
        # The copies that are left to make, by part, and who wants to know.
        self._waiting: deque[tuple[Iterator[None], Callable[[], None]]] = deque()
        self._tensors: dict[str, _Pages | _Views] | None = None

    def add(self, start: int, outputs: Tensors) -> TakeRest | None:
        """Takes the outputs of the part whose first row is ``start``.

        Large ones are copied, so that the part's memory can go. On the loop that is
        done in portions; the others come with the function that it returns.

        Raises:
            KeyError: An output is missing that was asked for, or that another part has.
            ValueError: An output does not fit to those of other parts.

        """
        tensors = self._tensors
        if tensors is None:
            tensors = self._tensors = {
                name: self._begin(name, outputs[name])
                for name in self._wanted or outputs
            }
        copies = [tensor.add(start, outputs[name]) for name, tensor in tensors.items()]
        loop = self._loop
        rest = itertools.chain.from_iterable(copies)
        if loop is None or not loop.is_loop_thread:
            for _ in rest:
                pass
        elif self._waiting or _take_some(rest):
            return partial(self._take_rest, rest, loop)
        return None

    def whole(self) -> Tensors:
        """Returns the outputs of the request, once all parts were taken.

        Raises:
            ValueError: Outputs do not fit together.

        """
        tensors = self._tensors or {}
        return {name: tensor.whole() for name, tensor in tensors.items()}

    def _take_rest(
        self,
        copies: Iterator[None],
        loop: BatchingLoop,
        on_taken: Callable[[], None],
    ) -> None:
        """Has copies made in later rounds, one part's after the other's."""
        self._waiting.append((copies, on_taken))
        if len(self._waiting) == 1:
            loop.post(partial(self._go_on, loop))

    def _go_on(self, loop: BatchingLoop) -> None:
        waiting = self._waiting
        if not _take_some(waiting[0][0]):
            waiting.popleft()[1]()
        if waiting:
            loop.post(partial(self._go_on, loop))

    def _begin(self, name: str, view: TensorView) -> _Pages | _Views:
        if name in self._padded:  # how much is to be kept of it is known at the end
            return _Views(is_padded=True)
        if view.dtype is not STRING and view.shape and view.shape[0] < self._num_rows:
            row_bytes = math.prod(view.shape[1:]) * view.dtype.item_bytes
            if row_bytes * self._num_rows >= _LARGE_BYTES:
                return _Pages(view, row_bytes, self._num_rows)
        return _Views()


class _Views:
    """Parts that are joined at the end."""

    __slots__ = ("_is_padded", "_views")

    def __init__(self, *, is_padded: bool = False) -> None:
        self._is_padded = is_padded
        self._views: dict[int, TensorView] = {}

    def add(self, start: int, view: TensorView) -> Iterable[None]:
        self._views[start] = view
        return ()

    def whole(self) -> TensorView:
        views = [self._views[start] for start in sorted(self._views)]
        if self._is_padded and len({view.shape[1:] for view in views}) > 1:
            views = _equally_long(views)
        return concatenate(views)


def _equally_long(views: list[TensorView]) -> list[TensorView]:
    """Returns the views, cut to the smallest of each inner size if ranks are equal."""
    if len({len(view.shape) for view in views}) > 1:
        return views
    inner = tuple(map(min, zip(*(view.shape[1:] for view in views), strict=True)))
    return [cut_inner(view, inner) for view in views]


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

    def add(self, start: int, view: TensorView) -> Iterable[None]:
        """Returns the copies that are to be made, one for each step of the result."""
        first = self._first
        if view.dtype is not first.dtype or view.shape[1:] != first.shape[1:]:
            raise ValueError(f"cannot concatenate {first!r} and {view!r}")
        self._num_left -= view.shape[0]
        part = memoryview(view.buffer)
        offset = start * self._row_bytes
        if offset + len(part) > len(self._pages):
            raise ValueError(
                f"cannot concatenate {first!r} and {view!r}: too many rows"
            )
        return self._copy(offset, part)

    def _copy(self, offset: int, part: memoryview) -> Iterator[None]:
        pages = self._pages
        for begin in range(0, len(part), _COPIED_BYTES):
            piece = part[begin : begin + _COPIED_BYTES]
            pages[offset + begin : offset + begin + len(piece)] = piece
            yield

    def whole(self) -> TensorView:
        if self._num_left:
            raise ValueError(f"{self._num_left} rows are missing of {self._shape[0]}")
        return TensorView(self._first.dtype, self._shape, self._pages.toreadonly())


def _take_some(copies: Iterator[None]) -> bool:
    """Makes a few of the copies; returns whether there may be more."""
    return sum(1 for _ in itertools.islice(copies, _NUM_AT_ONCE)) == _NUM_AT_ONCE
