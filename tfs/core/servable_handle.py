"""Pins on loaded servables, and the managers that give them out.

While a pin is held, the servable is not destroyed.

One handle object exists per loaded version, shared by all its requests, so that
pinning allocates nothing: ``pin`` and ``release`` are the bound ``append`` and
``pop`` of one deque, and the number of pins is its length. Both are single
bytecode-free C calls, atomic under the GIL; readers take no lock.

The hand-shake with the unloader is Dekker's: a reader pins and *then* looks at
``live``; the unloader clears ``live`` and *then* counts pins. Whatever the
interleaving, one sees the other: either the reader backs out, or the unloader
waits for it. A free-threaded build needs another counter behind the same
methods.

Rejected: a lock around an integer (3x the cost), an object per acquisition
(2.5x), and Python's own reference count, with which the last *request* would
free the model on a request thread.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar, cast

from tfs.core.errors import InvalidArgument
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class ServableHandle(Generic[T]):
    """The shared pin counter of one loaded version. Thread-safe.

    Readers get one from a manager, already pinned, and owe it one ``release()``;
    or use it as a context manager. The unloader calls ``retire`` once.

    Attributes:
        id: The version.
        servable: What is served; valid while a pin is held.
        live: False once the unloader has taken the version out of service.
        pin: Adds a pin: ``pin(None)``. The caller then re-checks ``live``, and
            releases and looks elsewhere if it is False.
        release: Takes one pin back. Calling it more often than ``pin`` raises
            IndexError.

    """

    __slots__ = (
        "_on_unpinned",
        "_pins",
        "id",
        "live",
        "pin",
        "release",
        "servable",
    )

    def __init__(self, servable_id: ServableId, servable: T) -> None:
        self.id = servable_id
        self.servable = servable
        self.live = True
        self._pins: deque[None] = deque()
        self._on_unpinned: Callable[[], None] = _do_nothing
        self.pin: Callable[[None], None] = self._pins.append
        self.release: Callable[[], None] = self._pins.pop

    @property
    def num_pins(self) -> int:
        """How many pins are held at this moment."""
        return len(self._pins)

    def retire(self, on_unpinned: Callable[[], None]) -> None:
        """Takes the version out of service: no later pin succeeds. Never blocks.

        Args:
            on_unpinned: Called when the last pin may be gone, possibly more than
                once, on the thread that releases it: quick, and not the place to
                destroy anything. A release that raced with ``retire`` does not call
                it; whoever waits looks at ``num_pins`` again after a while.

        """
        self._on_unpinned = on_unpinned
        self.live = False
        self.release = self._release_and_tell

    def drop(self) -> None:
        """Lets go of the servable once nothing pins it; ``servable`` is gone then.

        Whoever still has the handle object keeps no model alive with it.
        """
        with contextlib.suppress(AttributeError):
            del self.servable

    def _release_and_tell(self) -> None:
        self._pins.pop()
        if not self._pins:
            self._on_unpinned()

    def __enter__(self) -> T:
        return self.servable

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        state = "live" if self.live else "retired"
        return f"<ServableHandle {self.id.slashed} {state} pins={self.num_pins}>"


def _do_nothing() -> None:
    """Does nothing; is called for pins until a handle is retired."""


class Manager(Protocol[T_co]):
    """Gives out pins on loaded servables. Thread-safe; never blocks on a load.

    Implementors promise: a handle's servable is fully usable until released; the
    servable is destroyed on a manager thread, never on the releasing one.
    (TensorFlow Serving: core/manager.h.)
    """

    def acquire(self, request: ServableRequest) -> ServableHandle[object]:
        """Pins the requested version; the caller owes one ``release``.

        Raises:
            NotFound: ``Servable not found for request: ...``; nothing is pinned.

        """
        ...

    def list_available_ids(self) -> Sequence[ServableId]:
        """Returns the versions that can be requested now, in order."""
        ...


def acquire_as(
    manager: Manager[object], request: ServableRequest, kind: type[T]
) -> ServableHandle[T]:
    """Pins the requested version as a ``kind``; the caller owes one ``release``.

    Raises:
        NotFound: It is not available; nothing is pinned.
        InvalidArgument: ``Servable type doesn't match the asked for type.``; nothing
            is pinned.

    """
    handle = manager.acquire(request)
    if isinstance(handle.servable, kind):
        return cast("ServableHandle[T]", handle)
    handle.release()
    raise InvalidArgument(
        f"Servable type doesn't match the asked for type. {handle.id.slashed} is no "
        f"{kind.__name__}"
    )


def available_as(
    pinned: Sequence[ServableHandle[object]], kind: type[T]
) -> dict[ServableId, ServableHandle[T]]:
    """Keeps the handles whose servable is a ``kind``; releases the others."""
    kept: dict[ServableId, ServableHandle[T]] = {}
    for handle in pinned:
        if isinstance(handle.servable, kind):
            kept[handle.id] = cast("ServableHandle[T]", handle)
        else:
            handle.release()
    return kept
