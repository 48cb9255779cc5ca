"""From a version's payload to its loader: the last link before a manager.

(TensorFlow Serving: core/simple_loader.h, SimpleLoaderSourceAdapter.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Generic, TypeVar

from sources.adapter import Convert, UnarySourceAdapter
from tfs.core.loader import Loader
from tfs.core.resources import ResourceAllocation
from tfs.core.servable_id import ServableId

In = TypeVar("In")
T = TypeVar("T")


class MadeLoader(Generic[In, T]):
    """A loader that knows what it was made from. Confined to one caller at a time.

    Two of them are equal if they were made of the same version and an equal payload, in
    the same way. So a version that is aspired again while it serves is not loaded
    again, even if its loader was made anew. A manager that unloaded it can have another
    one made. (``tfs.core.loader.Renewable``.)

    Args:
        servable_id: The version.
        payload: The argument of ``make``.
        make: Makes the loader that does the work.

    Raises:
        Exception: What ``make`` raises.

    """

    def __init__(
        self, servable_id: ServableId, payload: In, make: Convert[In, Loader[T]]
    ) -> None:
        self._made_of = servable_id, payload, make
        self._loader = make(servable_id, payload)

    def estimate_resources(self) -> ResourceAllocation:
        return self._loader.estimate_resources()

    def load(self, servable_id: ServableId) -> None:
        self._loader.load(servable_id)

    def unload(self) -> None:
        self._loader.unload()

    @property
    def servable(self) -> T:
        return self._loader.servable

    @property
    def make_another(self) -> Callable[[], MadeLoader[In, T]]:
        """A function that makes an equal loader that was never loaded."""
        servable_id, payload, make = self._made_of
        return functools.partial(MadeLoader, servable_id, payload, make)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MadeLoader):
            return NotImplemented
        return bool(self._made_of == other._made_of)

    def __hash__(self) -> int:
        return hash(self._made_of[0])

    def __repr__(self) -> str:
        return f"<MadeLoader {self._made_of[0].slashed} of {self._loader!r}>"


class LoaderSourceAdapter(UnarySourceAdapter[In, Loader[T]]):
    """Makes a :class:`MadeLoader` of every version. Thread-safe.

    Args:
        make: Makes a loader of a payload; quick, loads nothing, and raises what is wrong
            with the version.

    """

    def __init__(self, make: Convert[In, Loader[T]]) -> None:
        super().__init__(
            lambda servable_id, payload: MadeLoader(servable_id, payload, make)
        )
