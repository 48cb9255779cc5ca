"""Copies remote versions to this machine before anybody is told to load them.

Behind this adapter every path is local, so managers, loaders and models know nothing of
remote storage. Copying runs in a pool. Meanwhile the versions that were handed on
before stay aspired, because leaving them out would unload them for a version that is
not copied yet.

Each servable's FetchedStream decides what is copied, handed on and kept. Going back to
a version whose copy was kept does not need the store.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence

from sources.fetched_stream import FetchedStream, LocalCopy, Service
from sources.remote_storage import is_remote
from sources.storage_path import StoragePath
from sources.version_cache import VersionCache
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import ServingError, serving_error
from tfs.core.servable_data import AspiredVersions
from tfs.core.servable_id import ServableId
from tfs.core.source import AspiredVersionsCallback, Outlet

log = logging.getLogger(__name__)

Run = Callable[[str, Callable[[], None]], object]
"""Takes a URL and a function that copies from there; runs it, soon or now, on any
thread.

Raises RuntimeError if it takes nothing more.
"""

Schedule = Callable[[float, Callable[[], None]], None]
"""Runs a function, which is quick, at a time by the clock, on any thread."""


class FetchingSourceAdapter:
    """Replaces remote paths by local copies of them. Thread-safe.

    If copying fails, the version has an error, which the status shows. It is tried
    again after pauses that double up to a quarter of an hour: by itself if there is a
    ``schedule``, else when the source repeats itself. A bounded cache needs room for
    three versions of a model that is being swapped: the new one, the one that serves
    and the one before it.

    Args:
        cache: Holds the copies.
        run: Runs the copying.
        clock: For pauses; None is the machine's.
        schedule: Runs later tries; None leaves that to the source.
        service: Returns what has become of a version; quick, and takes leaf locks only.
            By default all versions count as having served.

    """

    def __init__(
        self,
        cache: VersionCache,
        run: Run,
        clock: Clock | None = None,
        *,
        schedule: Schedule | None = None,
        service: Callable[[ServableId], Service] = lambda _: Service.SERVED,
    ) -> None:
        self._cache = cache
        self._clock = clock or MonotonicClock()
        self._run = run
        self._schedule = schedule
        self._service = service
        self._outlet: Outlet[StoragePath] = Outlet()
        # Held while the target is called, which orders the calls for a name. Rank:
        # before any lock of the target, after the source's.
        self._turn = threading.Lock()
        # Guards the fields below. Rank: after _turn, and before the locks of the cache
        # and of ``service``.
        self._lock = threading.Lock()
        self._streams: dict[str, FetchedStream] = {}
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
        """Whether versions of a servable are on their way here, or to the target.

        Thread-safe.
        """
        with self._lock:
            stream = self._streams.get(name)
            return stream is not None and stream.is_moving

    def on_their_way(self, name: str) -> Sequence[str]:
        """Returns a sentence for each version of a servable that is not copied yet.

        Thread-safe.
        """
        with self._lock:
            stream = self._streams.get(name)
            coming = [] if stream is None else stream.on_their_way
        now_s = self._clock.now()
        return [
            f"version {servable_id.version} is on its way here from {path.path}, for "
            f"{now_s - since_s:.0f} s now"
            for servable_id, path, since_s in coming
        ]

    def copies(self, base_path: str) -> Mapping[int, StoragePath]:
        """Returns the copied versions of a URL, which need no store; none for a path.

        Reads this machine's disk.
        """
        return self._cache.copies(base_path) if is_remote(base_path) else {}

    def note_shown(self, base_path: str, versions: Collection[int]) -> None:
        """Takes note of the versions that a store shows under a URL; ignores paths.

        Versions that the store no longer shows will not be among the ``copies`` of a
        later process. Writes to this machine's disk.
        """
        if is_remote(base_path):
            self._cache.note_shown(base_path, versions)

    def forget_failures(self, name: str) -> None:
        """Lets failed copies of a servable be tried again at the source's next call."""
        with self._lock:
            stream = self._streams.get(name)
            if stream is not None:
                stream.forget_failures()

    def check_copy(self, servable_id: ServableId) -> None:
        """Has a version copied again if it failed to load because its copy is damaged.

        Does nothing if the version was not copied, or if its copy is whole. Blocks
        while the copy is read. Not to be called with a lock held.
        """
        with self._lock:
            stream = self._streams.get(servable_id.name)
            found = stream and stream.copy_to_check(servable_id)
        if not found or not self._cache.drop_if_damaged(found[1].path):
            return
        path, copy = found
        with self._lock:
            stream = self._streams.get(servable_id.name)
            if stream is None or not stream.give_up_damaged(
                path, copy, self._clock.now()
            ):
                return
        self._submit(path, functools.partial(self._fetch, servable_id, path))

    def close(self) -> None:
        """Makes later calls do nothing; copies that end later have no effect."""
        self._outlet.close()

    def _take(self, aspired: AspiredVersions[StoragePath]) -> None:
        if not self._outlet.wait_connected():
            return
        with self._lock:
            stream = self._streams.get(aspired.name)
            if stream is None:
                stream = FetchedStream(aspired, self._cache.release, self._service)
                self._streams[aspired.name] = stream
            missing = stream.want(aspired, self._clock.now())
            self._due[aspired.name] = None
        self._tell(waits=True)
        for servable_id, path in missing:
            self._submit(path, functools.partial(self._fetch, servable_id, path))

    def _fetch_again(self, servable_id: ServableId, path: StoragePath) -> None:
        with self._lock:
            stream = self._streams.get(servable_id.name)
            if stream is None or not stream.try_again(path, self._clock.now()):
                return
        self._fetch(servable_id, path)

    def _fetch(self, servable_id: ServableId, path: StoragePath) -> None:
        outcome: LocalCopy | ServingError
        try:
            outcome = LocalCopy(servable_id, self._cache.fetch(path))
        except Exception as error:
            outcome = serving_error(error, f"cannot fetch {servable_id.slashed}")
            log.warning(
                "event=fetch_failed version=%s error=%s", servable_id.slashed, outcome
            )
        with self._lock:
            stream = self._streams.get(servable_id.name)
            if stream is None:
                if isinstance(outcome, LocalCopy):
                    self._cache.release(outcome.path)
                return
            now_s = self._clock.now()
            again_s = stream.take(path, outcome, now_s)
            if stream.is_due(now_s):
                self._due[servable_id.name] = None
        if again_s is not None and self._schedule is not None:
            again = functools.partial(self._fetch_again, servable_id, path)
            self._schedule(again_s, functools.partial(self._submit, path, again))
        self._tell(waits=False)

    def _submit(self, path: StoragePath, fetch: Callable[[], None]) -> None:
        try:
            self._run(path.path, fetch)
        except RuntimeError:  # the pool is shutting down
            log.info("event=fetch_refused url=%s", path.path)

    def _tell(self, *, waits: bool) -> None:
        """Tells the target what can be loaded now, for every servable that changed.

        If another thread is doing so already, it also tells this news.

        Args:
            waits: Whether the target knows when this returns.

        """
        while self._turn.acquire(blocking=waits):
            try:
                while (name := self._next_due()) is not None:
                    self._tell_of(name)
            finally:
                self._turn.release()
            with self._lock:
                if not self._due:
                    return
            waits = False  # later news is other threads' to wait for

    def _next_due(self) -> str | None:
        with self._lock:
            name = next(iter(self._due), None)
            if name is not None:
                del self._due[name]
            return name

    def _tell_of(self, name: str) -> None:
        begun_s = self._clock.now()
        with self._lock:
            stream = self._streams.get(name)
            if stream is None:
                return
            aspired = stream.begin_telling()
            if not stream.is_wanted:
                del self._streams[name]
        try:
            self._outlet.emit(aspired)
        except Exception:  # a fault of one servable: the others are told
            log.exception("event=target_failed servable=%s", name)
        with self._lock:
            now_s = self._clock.now()
            stream.end_telling(begun_s, now_s)
            if stream.is_due(now_s):
                self._due[name] = None
