"""Which versions can be requested now, readable without locks.

This is read-copy-update: one attribute refers to a published table that never changes.
A reader looks up its version there, pins the handle and checks that it is still live. A
writer builds the next table and publishes it by one assignment. Nobody waits for
readers of an old table, because the pins of its own handle keep a servable alive. So a
handle that is held for an hour delays the unloading of its own version and nothing
else. (TensorFlow Serving's FastReadDynamicPtr waits until every reader of the old map
is gone, whatever model it reads.)

Order for writers: withdraw from the table, then retire the handle, then wait for
its pins. A reader that pinned a retired handle backs out and looks again; the table
it then sees no longer holds that handle, so it does not loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tfs.core.errors import NotFound
from tfs.core.servable_handle import ServableHandle
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import Choice, ServableRequest

Handle = ServableHandle[object]


@dataclass(frozen=True, slots=True)
class _Stream:
    """One servable's requestable versions; never empty, never changed."""

    latest: Handle
    by_version: Mapping[int, Handle]


def _stream(by_version: Mapping[int, Handle]) -> _Stream:
    return _Stream(by_version[max(by_version)], by_version)


def _with(before: _Stream | None, handle: Handle) -> _Stream:
    if before is None:
        return _Stream(handle, {handle.id.version: handle})
    version = handle.id.version
    return _Stream(
        handle if version >= before.latest.id.version else before.latest,
        {**before.by_version, version: handle},
    )


class ServingMap:
    """Handles by name and version. Thread-safe; readers take no lock.

    Every ``acquire...`` returns a handle pinned for the caller, who owes it one
    ``release()``. A handle serves one request and is not kept.
    """

    __slots__ = ("_streams", "_writer")

    def __init__(self) -> None:
        # Only orders writers; leaf: nothing is called under it.
        self._writer = threading.Lock()
        self._streams: Mapping[str, _Stream] = {}

    def acquire(self, name: str) -> Handle:
        """Pins the highest version of ``name``. Allocates nothing.

        Raises:
            NotFound: No version of it is available; nothing is pinned.

        """
        while True:
            try:
                handle = self._streams[name].latest
            except KeyError:
                raise _not_found(ServableRequest.latest(name)) from None
            handle.pin(None)
            if handle.live:
                return handle
            handle.release()

    def acquire_version(self, name: str, version: int) -> Handle:
        """Pins exactly this version. Allocates nothing.

        Raises:
            NotFound: It is not available; nothing is pinned.

        """
        while True:
            try:
                handle = self._streams[name].by_version[version]
            except KeyError:
                raise _not_found(ServableRequest.specific(name, version)) from None
            handle.pin(None)
            if handle.live:
                return handle
            handle.release()

    def acquire_earliest(self, name: str) -> Handle:
        """Pins the lowest version of ``name``.

        Raises:
            NotFound: No version of it is available; nothing is pinned.

        """
        while stream := self._streams.get(name):
            handle = stream.by_version[min(stream.by_version)]
            handle.pin(None)
            if handle.live:
                return handle
            handle.release()
        raise _not_found(ServableRequest.earliest(name))

    def acquire_request(self, request: ServableRequest) -> Handle:
        """Pins what ``request`` describes.

        Raises:
            NotFound: It is not available; nothing is pinned.

        """
        if request.version is not None:
            return self.acquire_version(request.name, request.version)
        if request.choice is Choice.EARLIEST:
            return self.acquire_earliest(request.name)
        return self.acquire(request.name)

    @property
    def is_empty(self) -> bool:
        """Whether no version of anything is available."""
        return not self._streams

    def latest_version(self, name: str) -> int | None:
        """Returns the version that ``acquire`` would pin now; None without any."""
        stream = self._streams.get(name)
        return None if stream is None else stream.latest.id.version

    def versions(self, name: str) -> tuple[int, ...]:
        """Returns the versions of ``name`` available now, ascending."""
        stream = self._streams.get(name)
        return () if stream is None else tuple(sorted(stream.by_version))

    def list_ids(self) -> list[ServableId]:
        """Returns every available version, in order."""
        return [handle.id for handle in self._handles()]

    def acquire_all(self) -> list[Handle]:
        """Pins every available version, in order; each is owed a release."""
        pinned = []
        for handle in self._handles():
            handle.pin(None)
            if handle.live:
                pinned.append(handle)
            else:
                handle.release()
        return pinned

    def publish(self, handle: Handle) -> Handle | None:
        """Makes ``handle`` the one of its version; returns the one that it replaces."""
        name, version = handle.id.name, handle.id.version
        with self._writer:
            stream = self._streams.get(name)
            self._streams = {**self._streams, name: _with(stream, handle)}
            return None if stream is None else stream.by_version.get(version)

    def withdraw(self, handle: Handle) -> None:
        """Takes ``handle`` out; does nothing if another one has replaced it."""
        name, version = handle.id.name, handle.id.version
        with self._writer:
            stream = self._streams.get(name)
            if stream is None or stream.by_version.get(version) is not handle:
                return
            left = dict(stream.by_version)
            del left[version]
            streams = dict(self._streams)
            if left:
                streams[name] = _stream(left)
            else:
                del streams[name]
            self._streams = streams

    def _handles(self) -> Iterator[Handle]:
        streams = self._streams
        for name in sorted(streams):
            by_version = streams[name].by_version
            for version in sorted(by_version):
                yield by_version[version]


def retire(
    serving_map: ServingMap, handle: Handle, on_unpinned: Callable[[], None]
) -> bool:
    """Takes a version out of service; returns whether nothing pins it any more.

    If something does, ``on_unpinned`` is called, possibly more than once and on any
    thread, when that may have changed; look at ``handle.num_pins`` then.
    """
    serving_map.withdraw(handle)
    handle.retire(on_unpinned)
    return handle.num_pins == 0


def _not_found(request: ServableRequest) -> NotFound:
    return NotFound(f"Servable not found for request: {request}")
