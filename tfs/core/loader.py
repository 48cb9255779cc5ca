"""How a manager loads and unloads one version without knowing what it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar, runtime_checkable

from tfs.core.resources import ResourceAllocation
from tfs.core.servable_id import ServableId

T_co = TypeVar("T_co", covariant=True)


class Loader(Protocol[T_co]):
    """Loads one version once and unloads it once. Confined to one caller at a time.

    The manager calls in this order, each on a manager thread, never two at once:
    ``estimate_resources`` any number of times, ``load`` until it succeeds or is
    given up, ``servable``, ``unload`` once after a successful load. A version that
    comes back gets a new loader. (TensorFlow Serving: core/loader.h.)

    Implementors promise:

    1. ``estimate_resources`` is an upper bound, as far as the files tell, and the same
       at every call before loading. After loading it is what was measured, if anything
       was. It is cheap: no model code runs.
    2. ``load`` either leaves a servable or raises and leaves nothing behind.
    3. ``unload`` frees everything ``load`` took before it returns, and gives memory
       back to the system where possible. It never raises for a servable that failed
       meanwhile.
    """

    def estimate_resources(self) -> ResourceAllocation:
        """Returns what loading and holding the version takes, its peak included.

        Raises:
            ServingError: The version cannot be read; nothing changed.

        """
        ...

    def load(self, servable_id: ServableId) -> None:
        """Makes the version ready to serve; blocks while it loads.

        Raises:
            ServingError: It could not; nothing is left behind. An error whose code
                is INVALID_ARGUMENT, UNIMPLEMENTED, FAILED_PRECONDITION or DATA_LOSS
                is permanent and is not retried.

        """
        ...

    def unload(self) -> None:
        """Frees the version; nothing uses it any more. Blocks."""
        ...

    @property
    def servable(self) -> T_co:
        """The loaded servable; only between ``load`` and ``unload``."""
        ...


@runtime_checkable
class Renewable(Protocol):
    """Optional for loaders: returns a function that makes another loader like this one.

    A manager needs that when it unloaded a version for a newer one which then failed,
    and now brings the old one back.
    """

    @property
    def make_another(self) -> Callable[[], Loader[object]]:
        """Makes a loader of the same version; does not keep alive what this one loaded.

        Quick, because it loads nothing. Raises what is wrong with the version.
        """
        ...
