"""A source, adapters behind it and a target at the end, as one thing to own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from tfs.core.source import Source, SourceAdapter, Target, connect


class SourceChain:
    """Wires ``source`` through ``adapters`` to ``target``. Confined to its owner.

    The links are connected from the far end, so that nothing flows before everything is
    in place. They are closed from the near end: first the source, so that nothing new
    comes, then the adapters in order. The target is its owner's to close. (TensorFlow
    Serving: AspiredVersionsManagerBuilder::AddSourceChain.)

    Payloads differ from link to link, which Python's types cannot express for a list.
    So the caller has to make sure that neighbours fit.
    """

    def __init__(
        self,
        source: Source[Any],
        adapters: Sequence[SourceAdapter[Any, Any]],
        target: Target[Any],
    ) -> None:
        self._links: tuple[object, ...] = (source, *adapters)
        sink = target
        for adapter in reversed(adapters):
            connect(adapter, sink)
            sink = adapter
        connect(source, sink)

    def close(self) -> None:
        """Closes every link that can be closed, the source first."""
        for link in self._links:
            close = getattr(link, "close", None)
            if close is not None:
                close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
