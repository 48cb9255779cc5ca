"""The outputs of a request that is computed in parts, put together when all have come."""

from __future__ import annotations

from collections.abc import Container, Sequence

from tfs.core.servable import Tensors
from tfs.core.tensor_view import TensorView, concatenate
from tfs.servables.joining.tensor_join import cut_inner


class PartOutputs:
    """Takes the outputs of a request's parts, in any order. Confined to one thread at a time.

    Args:
        wanted: Names of the outputs that the request asked for; empty means all. Parts
            may come with further ones, and not all with the same.
        padded: Names of the outputs whose inner sizes depend on the batch in which a part
            was computed. What some parts answer beyond the others is for padding, and is
            cut off.

    """

    __slots__ = ("_padded", "_parts", "_wanted")

    def __init__(
        self, wanted: Sequence[str] = (), *, padded: Container[str] = ()
    ) -> None:
        self._wanted = tuple(wanted)
        self._padded = padded
        self._parts: dict[int, Tensors] = {}

    def add(self, start: int, outputs: Tensors) -> None:
        """Takes the outputs of the part whose first row is ``start``.

        Raises:
            KeyError: An output is missing that was asked for, or that another part has.

        """
        names = self._wanted = self._wanted or tuple(outputs)
        self._parts[start] = {name: outputs[name] for name in names}

    def whole(self) -> Tensors:
        """Returns the outputs of the request, once all parts were taken.

        Raises:
            ValueError: Outputs do not fit together.

        """
        parts = [self._parts[start] for start in sorted(self._parts)]
        return {name: self._joined(name, parts) for name in self._wanted}

    def _joined(self, name: str, parts: list[Tensors]) -> TensorView:
        views = [part[name] for part in parts]
        inner = [view.shape[1:] for view in views]
        if name in self._padded and len({len(each) for each in inner}) == 1:
            smallest = tuple(map(min, zip(*inner, strict=True)))
            views = [cut_inner(view, smallest) for view in views]
        return concatenate(views)
