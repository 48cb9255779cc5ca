"""Sources, targets, what sits between them, and what travels: versions with data or an error.

A source decides which versions of which servables should exist and says so, one
:class:`AspiredVersions` a call: the *complete* wish for one servable name, so a
missed call is repaired by the next one. Adapters turn the payloads (a path into a
loader), routers spread the names, a manager is the final target.
(TensorFlow Serving: core/source.h, core/target.h, core/source_adapter.h.)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tfs.core.errors import ServingError
from tfs.core.servable_id import ServableId

T = TypeVar("T")
U = TypeVar("U")
In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(frozen=True, slots=True)
class ServableData(Generic[T]):
    """A version together with what to load it from, or why it cannot be loaded.

    A source may aspire an erroneous version: it reaches the manager and shows in
    the version's status instead of stopping the others
    (TensorFlow Serving: core/servable_data.h).
    """

    id: ServableId
    payload: T | None = None
    error: ServingError | None = None

    def __post_init__(self) -> None:
        if (self.payload is None) == (self.error is None):
            raise ValueError(f"{self.id} needs either a payload or an error")

    def with_payload(self, payload: U) -> ServableData[U]:
        """Returns the same version carrying ``payload``."""
        return ServableData(self.id, payload)


@dataclass(frozen=True, slots=True)
class AspiredVersions(Generic[T]):
    """The complete set of versions that a source wants of one servable.

    Omission means unload; an empty set unloads every version.

    Attributes:
        name: The servable's name; every version's id carries it.
        versions: The versions, in the source's order.
        reason: Why the set is what it is, for people ("latest(1) of /models/a: 3
            appeared"); recorded with every load and unload it causes.

    """

    name: str
    versions: tuple[ServableData[T], ...]
    reason: str = ""

    def __post_init__(self) -> None:
        for data in self.versions:
            if data.id.name != self.name:
                raise ValueError(
                    f"Servable name: {self.name} doesn't match name in servable "
                    f"version: {data.id.name}"
                )


AspiredVersionsCallback = Callable[[AspiredVersions[T]], None]


class Source(Protocol[T]):
    """Something that knows which versions should be loaded.

    Implementors promise:

    1. every call names one servable and carries its complete aspired set;
    2. nothing is called before ``set_aspired_versions_callback``, and that is
       called at most once (a second call raises RuntimeError);
    3. calls may come from any thread, also at the same time for different names;
       calls for one name are ordered;
    4. what fails for one servable delays no other.

    Example: ``a {1}``, then ``a {1, 2}``, then ``a {2}``, then ``a {}``.
    """

    def set_aspired_versions_callback(
        self, callback: AspiredVersionsCallback[T]
    ) -> None:
        """Connects the source; it may call back at once, from any thread."""
        ...


class Target(Protocol[T]):
    """Something that takes aspired versions.

    Implementors promise that the callback stays callable for ever: once the target
    is closed calls do nothing. It never blocks on loading or on a model.
    """

    def aspired_versions_callback(self) -> AspiredVersionsCallback[T]:
        """Returns the function for sources to call. Thread-safe."""
        ...


class SourceAdapter(Protocol[In, Out]):
    """A target of one payload and a source of another.

    Implementors promise: an error item passes through unchanged; an item that
    cannot be adapted becomes an error item for its id, the others go on; the
    order is kept. Calls block until the outgoing side is connected.
    """

    def aspired_versions_callback(self) -> AspiredVersionsCallback[In]:
        """Returns the function for sources to call."""
        ...

    def set_aspired_versions_callback(
        self, callback: AspiredVersionsCallback[Out]
    ) -> None:
        """Connects the outgoing side."""
        ...


def connect(source: Source[T], target: Target[T]) -> None:
    """Makes ``target`` receive what ``source`` aspires."""
    source.set_aspired_versions_callback(target.aspired_versions_callback())


class Outlet(Generic[T]):
    """The outgoing side of a source, and one itself: holds its one callback. Thread-safe.

    ``emit`` blocks until connected, so that an adapter or router wired inside out
    loses nothing; ``close`` turns later calls into no-ops and frees blocked ones.
    """

    def __init__(self) -> None:
        # Guards both fields; the callback itself is called outside it.
        self._changed = threading.Condition()
        self._callback: AspiredVersionsCallback[T] | None = None
        self._closed = False

    def set_aspired_versions_callback(
        self, callback: AspiredVersionsCallback[T]
    ) -> None:
        """Sets the callback.

        Raises:
            RuntimeError: It is set already; nothing changed.

        """
        with self._changed:
            if self._callback is not None:
                raise RuntimeError("the aspired-versions callback is set already")
            self._callback = callback
            self._changed.notify_all()

    @property
    def is_connected(self) -> bool:
        """Whether a callback is set."""
        return self._callback is not None

    def wait_connected(self) -> bool:
        """Blocks until connected or closed; returns False if closed."""
        with self._changed:
            while self._callback is None and not self._closed:
                self._changed.wait()
            return not self._closed

    def emit(self, aspired: AspiredVersions[T]) -> None:
        """Hands ``aspired`` on; blocks until connected; does nothing once closed."""
        callback = self._callback
        if callback is None or self._closed:
            if not self.wait_connected():
                return
            callback = self._callback
        if callback is not None:
            callback(aspired)

    def close(self) -> None:
        """Makes every later and blocked ``emit`` return without calling."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
