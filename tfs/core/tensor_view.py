"""Tensors as all packages pass them: a dtype, a shape and a buffer that somebody owns.

No torch, numpy or protobuf object crosses a room; the codec points a view into
the request's bytes, batching joins views, the runtime copies them once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, TypeAlias

from tfs.core.dtype import STRING, DType

Buffer: TypeAlias = bytes | bytearray | memoryview

LARGE_BYTES: Final = 65_536
"""From this size on it pays to think about how not to copy elements."""

_SMALL_BYTES = 512  # are copied in less time than a memoryview is made


class TensorView:
    """A dense tensor over a borrowed buffer. Immutable.

    Attributes:
        dtype: Element type.
        shape: Sizes of all dimensions, each >= 0; () is a scalar.
        data: For numbers the elements, little-endian, row-major, exactly
            ``size_bytes`` long, as bytes, bytearray or a contiguous memoryview of
            format B. For strings a tuple of bytes in row-major order.

    Readers never write to ``data``, with one exception: a *writable memoryview* is
    given away with the task it is an input of. Nobody else reads it any more, so a
    model may have it as its input, without a copy, and do with it as it likes. A
    *read-only memoryview* stays as it is for as long as it lives, as bytes do.

    The constructor does not check: it is on every request's path. What comes from
    outside goes through :meth:`checked`.

    """

    __slots__ = ("data", "dtype", "shape")

    def __init__(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        data: Buffer | tuple[bytes, ...],
    ) -> None:
        self.dtype = dtype
        self.shape = shape
        self.data = data

    @classmethod
    def checked(
        cls, dtype: DType, shape: Sequence[int], data: Buffer | tuple[bytes, ...]
    ) -> TensorView:
        """Returns a view after checking that ``data`` fits dtype and shape.

        Raises:
            ValueError: It does not, or a dimension is negative.

        """
        sizes = tuple(shape)
        if any(size < 0 for size in sizes):
            raise ValueError(f"negative dimension in shape {list(sizes)}")
        num_elements = math.prod(sizes)
        if isinstance(data, tuple):
            if dtype is not STRING or len(data) != num_elements:
                raise ValueError(
                    f"{len(data)} strings do not fill {dtype} {list(sizes)}"
                )
            return cls(dtype, sizes, data)
        if dtype is STRING:
            raise ValueError("a string tensor holds a tuple of bytes")
        if isinstance(data, memoryview) and (
            data.format != "B" or not data.c_contiguous
        ):
            raise ValueError("a memoryview must be contiguous and of format B")
        if len(data) != num_elements * dtype.item_bytes:
            raise ValueError(
                f"{len(data)} bytes do not fill {dtype} {list(sizes)}, which takes "
                f"{num_elements * dtype.item_bytes}"
            )
        return cls(dtype, sizes, data)

    @property
    def num_elements(self) -> int:
        """The product of the sizes; 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes the elements take; for strings their summed lengths."""
        if isinstance(self.data, tuple):
            return sum(map(len, self.data))
        return len(self.data)

    @property
    def buffer(self) -> Buffer:
        """The elements of a tensor without strings, little-endian, in C order.

        Raises:
            TypeError: It is one of strings.

        """
        if isinstance(self.data, tuple):
            raise TypeError("a tensor of strings has no buffer")
        return self.data

    @property
    def strings(self) -> tuple[bytes, ...]:
        """The elements of a tensor of strings, in C order.

        Raises:
            TypeError: It is not a tensor of strings.

        """
        if not isinstance(self.data, tuple):
            raise TypeError(f"a tensor of {self.dtype} has no strings")
        return self.data

    @property
    def num_rows(self) -> int:
        """Size of dimension 0, the batch; 1 for a scalar."""
        return self.shape[0] if self.shape else 1

    def rows(self, start: int, stop: int) -> TensorView:
        """Returns rows ``start`` to ``stop`` of dimension 0; copies only a few bytes."""
        shape = (stop - start, *self.shape[1:])
        data = self.data
        per_row = math.prod(self.shape[1:])
        if isinstance(data, tuple):
            return TensorView(self.dtype, shape, data[start * per_row : stop * per_row])
        row_bytes = per_row * self.dtype.item_bytes
        if type(data) is bytes and (stop - start) * row_bytes <= _SMALL_BYTES:
            window = data[start * row_bytes : stop * row_bytes]
            return TensorView(self.dtype, shape, window)
        view = memoryview(data)[start * row_bytes : stop * row_bytes]
        return TensorView(self.dtype, shape, view)

    def parts(self, num_rows: int, num_parts: int) -> list[Buffer]:
        """Returns the elements of the first parts of so many rows each, one by one.

        Raises:
            TypeError: It is a tensor of strings.

        """
        data = self.buffer
        size = math.prod(self.shape[1:]) * self.dtype.item_bytes * num_rows
        if size > _SMALL_BYTES:
            data = memoryview(data)
        return [data[index * size : (index + 1) * size] for index in range(num_parts)]

    def read_only(self) -> TensorView:
        """Returns the view without leave to write to it."""
        data = self.data
        if isinstance(data, memoryview) and not data.readonly:
            return TensorView(self.dtype, self.shape, data.toreadonly())
        return self

    def owned(self) -> TensorView:
        """Returns the view over bytes of its own, so that its buffer may change."""
        if isinstance(self.data, bytes | tuple):
            return self
        return TensorView(self.dtype, self.shape, bytes(self.data))

    def __eq__(self, other: object) -> bool:
        """Same dtype, same shape, same bytes (so NaN equals itself)."""
        if not isinstance(other, TensorView):
            return NotImplemented
        return (
            self.dtype is other.dtype
            and self.shape == other.shape
            and self.data == other.data
        )

    __hash__ = None  # type: ignore[assignment]  # a buffer has no stable hash

    def __repr__(self) -> str:
        return f"TensorView({self.dtype} {list(self.shape)})"


def concatenate(views: Sequence[TensorView]) -> TensorView:
    """Joins views of one dtype and equal inner shape along dimension 0.

    The elements are copied once, and many of them to where a model may have them as
    they are (a writable memoryview); with one view that view is returned.

    Raises:
        ValueError: No views, a scalar, or dtypes or inner shapes that differ.

    """
    if not views:
        raise ValueError("nothing to concatenate")
    first = views[0]
    if len(views) == 1:
        return first
    inner = first.shape[1:]
    num_rows = 0
    for view in views:
        if view.dtype is not first.dtype or not view.shape or view.shape[1:] != inner:
            raise ValueError(f"cannot concatenate {first!r} and {view!r}")
        num_rows += view.shape[0]
    shape = (num_rows, *inner)
    if first.dtype is STRING:
        strings: list[bytes] = []
        for view in views:
            strings.extend(view.strings)
        return TensorView(STRING, shape, tuple(strings))
    parts: list[Buffer] = [v.data for v in views]  # type: ignore[misc]  # numbers
    if sum(map(len, parts)) < LARGE_BYTES:
        return TensorView(first.dtype, shape, b"".join(parts))
    return TensorView(first.dtype, shape, memoryview(bytearray().join(parts)))


def join_elements(
    specs: Sequence[tuple[str, DType, tuple[int, ...]]],
    elements: Sequence[tuple[Buffer, ...]],
    num_rows: int,
) -> dict[str, TensorView]:
    """Joins tensors of equal names, dtypes and shapes, of which the elements are there.

    Copies those once. Many are given away, as :func:`concatenate` does.

    Args:
        specs: Name, dtype and shape of each tensor of a set.
        elements: The elements of each set's tensors; at least one set.
        num_rows: Rows of the result: the first row is repeated until there are so many.

    """
    joined: dict[str, TensorView] = {}
    for index, (name, dtype, shape) in enumerate(specs):
        parts = [own[index] for own in elements]
        row_bytes = len(parts[0]) // shape[0]
        missing = num_rows - len(elements) * shape[0]
        if missing:
            parts += [parts[0][:row_bytes]] * missing
        data: Buffer
        if row_bytes * num_rows < LARGE_BYTES:
            data = b"".join(parts)
        else:
            data = memoryview(bytearray().join(parts))
        joined[name] = TensorView(dtype, (num_rows, *shape[1:]), data)
    return joined
