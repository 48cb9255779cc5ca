"""The map from names to loaded versions that every request reads.

The naive map is a dict behind a lock: every request pays for it, and a writer that
waits for readers stalls them all. Here the published dict is never changed. A writer
builds a new one and swaps it in by one assignment; a reader takes one reference to
whatever is published, looks up, pins, and checks that the version is still live:

    reader                          writer
    handle = published[name]        published = new dict without the version
    handle.pin(None)                handle.retire()        # live = False
    if handle.live: use it          wait until no pins

Pins are counted per version, so a pin held for an hour delays only that version's
unload. A reader that lost the race (its handle was retired between look-up and pin)
lets go and looks again: by then the new map is published, because the writer swaps
before it retires. Readers never wait; two writers exclude each other.

Rejected: TensorFlow Serving's FastReadDynamicPtr, whose writer waits until *every*
reader of the old map is gone (one slow request anywhere blocks all unloads).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Final

from tfs.core.errors import NotFound
from tfs.core.servable_handle import ServableHandle
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import Choice, ServableRequest

Handle = ServableHandle[object]

_NOTHING: Final[Mapping[int, Handle]] = {}


class ServingMap:
    """Available versions by name. Thread-safe; readers take no lock."""

    def __init__(self) -> None:
        # Both published, never changed, always swapped in this order.
        self._versions: Mapping[str, Mapping[int, Handle]] = {}
        self._latest: Mapping[str, Handle] = {}
        # Orders writers; leaf: nothing is called under it but dict building.
        self._writing = threading.Lock()

    def acquire(self, name: str) -> Handle:
        """Pins the highest available version; the caller owes one ``release``.

        Raises:
            NotFound: No version of ``name`` is available; nothing is pinned.

        """
        while True:
            handle = self._latest.get(name)
            if handle is None:
                raise not_found(ServableRequest.latest(name))
            handle.pin(None)
            if handle.live:
                return handle
            handle.release()

    def acquire_version(self, name: str, version: int) -> Handle:
        """Pins exactly ``version``; the caller owes one ``release``.

        Raises:
            NotFound: It is not available; nothing is pinned.

        """
        while True:
            handle = self._versions.get(name, _NOTHING).get(version)
            if handle is None:
                raise not_found(ServableRequest.specific(name, version))
            handle.pin(None)
            if handle.live:
                return handle
            handle.release()

    def acquire_requested(self, request: ServableRequest) -> Handle:
        """Pins what ``request`` chooses; the caller owes one ``release``.

        Raises:
            NotFound: Nothing fits; nothing is pinned.

        """
        if request.version is not None:
            return self.acquire_version(request.name, request.version)
        if request.choice is Choice.LATEST:
            return self.acquire(request.name)
        while True:
            versions = self._versions.get(request.name)
            if not versions:
                raise not_found(request)
            handle = versions[min(versions)]
            handle.pin(None)
            if handle.live:
                return handle
            handle.release()

    def ids(self) -> Sequence[ServableId]:
        """Returns the available versions, in order."""
        return sorted(
            handle.id
            for versions in self._versions.values()
            for handle in versions.values()
        )

    def add(self, handle: Handle) -> None:
        """Publishes a version; requests that begin after this find it."""
        with self._writing:
            versions = dict(self._versions.get(handle.id.name, _NOTHING))
            versions[handle.id.version] = handle
            self._publish(handle.id.name, versions)

    def remove(self, handle: Handle) -> None:
        """Withdraws a version and retires its handle; does not wait for pins."""
        with self._writing:
            versions = dict(self._versions.get(handle.id.name, _NOTHING))
            if versions.get(handle.id.version) is handle:
                del versions[handle.id.version]
                self._publish(handle.id.name, versions)
        handle.retire()

    def _publish(self, name: str, versions: Mapping[int, Handle]) -> None:
        # One name changes: the outer dicts are copied, the inner ones are shared.
        all_versions = dict(self._versions)
        latest = dict(self._latest)
        if versions:
            all_versions[name] = versions
            latest[name] = versions[max(versions)]
        else:
            all_versions.pop(name, None)
            latest.pop(name, None)
        self._versions = all_versions
        self._latest = latest


def not_found(request: ServableRequest) -> NotFound:
    """Returns the error for a request that nothing serves."""
    return NotFound(f"Servable not found for request: {request}")
