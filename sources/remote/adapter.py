"""Copies remote versions to this machine before anybody is told to load them.

Behind this adapter every path is local, so managers, loaders and models know nothing of
remote storage. Copying runs in a pool. Meanwhile the versions that were handed on
before stay aspired, because leaving them out would unload them for a version that is
not copied yet. Servables without a URL pass through at once.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sources.remote.cache import VersionCache
from sources.remote.storage import is_remote, local_path
from sources.storage_path import StoragePath
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import (
    ResourceExhausted,
    ServingError,
    Unavailable,
    serving_error,
)
from tfs.core.servable_data import AspiredVersions, ServableData
from tfs.core.servable_id import ServableId
from tfs.core.source import AspiredVersionsCallback, Outlet

log = logging.getLogger(__name__)

# Pauses between tries of a copy that failed. Asking a store again that does not answer
# costs little. But a version of gigabytes that is damaged in the store would be copied
# over and over.
_FIRST_PAUSE_S: Final = 15.0
_FIRST_PAUSE_OF_STORE_S: Final = 1.0
_LAST_PAUSE_S: Final = 900.0

Run = Callable[[str, Callable[[], None]], object]
"""Takes a URL and a function that copies from there; runs it, soon or now, on any
thread.

Raises RuntimeError if it takes nothing more.
"""

Schedule = Callable[[float, Callable[[], None]], None]
"""Runs a function, which is quick, at a time by the clock, on any thread."""


@dataclass(slots=True)
class _Fetch:
    """What was done to get one version here. Versions are told apart by remote path.

    Attributes:
        id: The version.
        since_s: When it began, by the clock, while a copy is on its way; else None.
        copy: The copy; None if there is none.
        error: Why there is none, after a failure.
        num_failures: In a row.
        pauses_until_s: When another try may come, by the clock.

    """

    id: ServableId
    since_s: float | None = None
    copy: StoragePath | None = None
    error: ServingError | None = None
    num_failures: int = 0
    pauses_until_s: float = 0.0

    def fail(self, error: ServingError, now_s: float) -> bool:
        """Notes a failure; returns whether to try again after the pause."""
        self.error = error
        if isinstance(error, ResourceExhausted):  # nothing was copied
            return False
        is_store = isinstance(error, Unavailable)
        first_s = _FIRST_PAUSE_OF_STORE_S if is_store else _FIRST_PAUSE_S
        pause_s = min(first_s * 2.0**self.num_failures, _LAST_PAUSE_S)
        self.pauses_until_s = now_s + pause_s
        self.num_failures += 1
        return True


@dataclass(slots=True)
class _Stream:
    """One servable: its versions that are wanted, and what became of them, by path."""

    wanted: AspiredVersions[StoragePath]
    fetches: dict[StoragePath, _Fetch] = field(default_factory=dict)
    told: tuple[ServableData[StoragePath], ...] = ()

    def local(self) -> AspiredVersions[StoragePath]:
        """Returns the versions to hand on now."""
        here = [data for each in self.wanted.versions if (data := self._local(each))]
        if len(here) < len(self.wanted.versions):
            ids = {data.id for data in here}
            here += [data for data in self.told if data.id not in ids]
        return replace(self.wanted, versions=tuple(here))

    @property
    def is_over(self) -> bool:
        """Whether no version is wanted, and the target knows."""
        return not (self.wanted.versions or self.told)

    def unneeded(self) -> dict[StoragePath, _Fetch]:
        """Returns the versions that are neither wanted nor handed on, the last first."""
        kept = {data.payload for data in (*self.wanted.versions, *self.told)}
        return {
            path: fetch
            for path, fetch in reversed(self.fetches.items())
            if path not in kept and (fetch.copy is None or fetch.copy not in kept)
        }

    def _local(
        self, data: ServableData[StoragePath]
    ) -> ServableData[StoragePath] | None:
        """Returns a version as the target is told of it; None if it is on its way."""
        path = data.payload
        if path is None or not is_remote(path.path):
            return _without_scheme(data)
        fetch = self.fetches[path]
        if fetch.since_s is not None:
            return None
        if fetch.copy is not None:
            return data.with_payload(fetch.copy)
        return data.with_error(fetch.error) if fetch.error else None


class FetchingSourceAdapter:
    """Replaces remote paths by local copies of them. Thread-safe.

    If copying fails, the version has an error, which the status shows. It is tried
    again after pauses that double up to a quarter of an hour: by itself if there is a
    ``schedule``, else when the source repeats itself.

    A copy is kept while its version is aspired or is in use; after that it stays until
    its room is needed.

    Args:
        cache: Holds the copies.
        run: Runs the copying.
        clock: For pauses; None is the machine's.
        schedule: Runs later tries; None leaves that to the source.
        is_used: Whether a version may read its files, although it is not aspired any
            more; quick, and takes leaf locks only.

    """

    def __init__(
        self,
        cache: VersionCache,
        run: Run,
        clock: Clock | None = None,
        *,
        schedule: Schedule = lambda _when_s, _fn: None,
        is_used: Callable[[ServableId], bool] = lambda _: False,
    ) -> None:
        self._cache = cache
        self._clock = clock or MonotonicClock()
        self._run = run
        self._schedule = schedule
        self._is_used = is_used
        self._outlet: Outlet[StoragePath] = Outlet()
        # Guards the fields below; leaf.
        self._lock = threading.Condition()
        # Whether a thread calls the target; one at a time, which orders the calls.
        self._is_telling = False
        self._streams: dict[str, _Stream] = {}
        # Servables of which the target is to be told now.
        self._due: dict[str, None] = {}

    def aspired_versions_callback(self) -> AspiredVersionsCallback[StoragePath]:
        """Returns the function for sources to call; harmless after ``close``."""
        return self._take

    def set_aspired_versions_callback(
        self, callback: AspiredVersionsCallback[StoragePath]
    ) -> None:
        """Connects the outgoing side; calls that waited for it go on."""
        self._outlet.connect(callback)

    def is_copying(self, name: str) -> bool:
        """Whether versions of a servable are on their way here, or to the target."""
        with self._lock:
            stream = self._streams.get(name)
            if stream is None:
                return False
            return stream.local().versions != stream.told or any(
                each.since_s is not None for each in stream.fetches.values()
            )

    def on_their_way(self, name: str) -> Sequence[str]:
        """Returns a sentence for each version of a servable that is not copied yet."""
        now_s = self._clock.now()
        with self._lock:
            stream = self._streams.get(name)
            fetches = stream.fetches.items() if stream is not None else ()
            return [
                f"version {fetch.id.version} is on its way here from {path.path}, for "
                f"{now_s - fetch.since_s:.0f} s now"
                for path, fetch in fetches
                if fetch.since_s is not None
            ]

    def forget_failures(self, name: str) -> None:
        """Lets failed copies of a servable be tried again at the source's next call."""
        with self._lock:
            stream = self._streams.get(name)
            for fetch in stream.fetches.values() if stream is not None else ():
                fetch.num_failures, fetch.pauses_until_s = 0, 0.0

    def close(self) -> None:
        """Makes later calls do nothing; copies that end later have no effect."""
        self._outlet.close()

    # -- what is wanted ------------------------------------------------------------

    def _take(self, aspired: AspiredVersions[StoragePath]) -> None:
        if not self._outlet.wait_connected():
            return
        name = aspired.name
        remote = {
            data.payload: data.id
            for data in aspired.versions
            if data.payload is not None and is_remote(data.payload.path)
        }
        missing = []
        with self._lock:
            stream = self._streams.setdefault(name, _Stream(aspired))
            stream.wanted = aspired
            for path, servable_id in remote.items():
                fetch = stream.fetches.setdefault(path, _Fetch(servable_id))
                if self._begin_locked(fetch):
                    missing.append(path)
            self._due[name] = None
        self._release_unused(name)
        self._tell(waits=True)
        for path in missing:
            self._submit(name, path)

    def _begin_locked(self, fetch: _Fetch) -> bool:
        """Notes that a copy is on its way, unless it is so, is here or pauses."""
        now_s = self._clock.now()
        if fetch.since_s is not None or fetch.copy is not None:
            return False
        if now_s < fetch.pauses_until_s:
            return False
        fetch.since_s = now_s
        return True

    def _release_unused(self, name: str) -> None:
        """Forgets versions that are neither wanted, nor handed on, nor in use."""
        with self._lock:
            stream = self._streams.get(name)
            if stream is None:
                return
            unneeded, is_over = stream.unneeded(), stream.is_over
        used: set[ServableId] = set()
        for path, fetch in list(unneeded.items()):
            # Of a version that was replaced in place, only the last contents may serve.
            if is_over or fetch.copy is None or fetch.id in used:
                continue
            if self._is_used(fetch.id):
                used.add(fetch.id)
                del unneeded[path]
        with self._lock:
            unneeded = {p: f for p, f in stream.unneeded().items() if p in unneeded}
            for path in unneeded:
                del stream.fetches[path]
        gone = unneeded.values()
        for fetch in gone:
            if fetch.copy is not None:
                self._cache.release(fetch.copy)

    # -- copying -------------------------------------------------------------------

    def _submit(self, name: str, path: StoragePath) -> None:
        try:
            self._run(path.path, functools.partial(self._fetch, name, path))
        except RuntimeError:  # the pool is shutting down
            log.info("event=fetch_refused url=%s", path.path)

    def _fetch(self, name: str, path: StoragePath) -> None:
        copy, error = None, None
        try:
            copy = self._cache.fetch(path)
        except Exception as raised:
            error = serving_error(raised, f"cannot fetch a version of {name}")
            log.warning("event=fetch_failed url=%s error=%s", path.path, error)
        with self._lock:
            stream = self._streams.get(name)
            fetch = None if stream is None else stream.fetches.get(path)
            is_awaited = fetch is not None and fetch.since_s is not None
            is_tried_again = False
            if fetch is not None and is_awaited:
                fetch.since_s, fetch.copy = None, copy
                if error is None:
                    fetch.error, fetch.num_failures = None, 0
                else:
                    is_tried_again = fetch.fail(error, self._clock.now())
                self._due[name] = None
        if fetch is None or not is_awaited:
            if copy is not None:
                self._cache.release(copy)
            return
        if is_tried_again:
            again = functools.partial(self._fetch_again, name, path)
            self._schedule(fetch.pauses_until_s, again)
        self._tell(waits=False)

    def _fetch_again(self, name: str, path: StoragePath) -> None:
        with self._lock:
            stream = self._streams.get(name)
            fetch = None if stream is None else stream.fetches.get(path)
            if stream is None or fetch is None or not self._begin_locked(fetch):
                return
        self._submit(name, path)

    # -- telling -------------------------------------------------------------------

    def _tell(self, *, waits: bool) -> None:
        """Tells the target what can be loaded now, for every servable that changed.

        If another thread is doing so already, it also tells this news.

        Args:
            waits: Whether the target knows when this returns.

        """
        with self._lock:
            if self._is_telling and not waits:
                return
            self._lock.wait_for(lambda: not self._is_telling)
            self._is_telling = True
        while (name := self._next_due()) is not None:
            self._tell_of(name)

    def _next_due(self) -> str | None:
        """Returns what the target is to be told of; if there is nothing, ends telling."""
        with self._lock:
            name = next(iter(self._due), None)
            if name is None:
                self._is_telling = False
                self._lock.notify_all()
            else:
                del self._due[name]
            return name

    def _tell_of(self, name: str) -> None:
        with self._lock:
            stream = self._streams.get(name)
            if stream is None:
                return
            local = stream.local()
        try:
            self._outlet.emit(local)
        except Exception:  # a fault of one servable: the others are told
            log.exception("event=target_failed servable=%s", name)
        with self._lock:
            stream.told = local.versions
        self._release_unused(name)
        with self._lock:
            if not stream.wanted.versions and self._streams.get(name) is stream:
                del self._streams[name]


def _without_scheme(data: ServableData[StoragePath]) -> ServableData[StoragePath]:
    path = data.payload
    if path is None or local_path(path.path) == path.path:
        return data
    return data.with_payload(replace(path, path=local_path(path.path)))
