"""Makes remote versions local before anybody is told to load them.

Behind this adapter every path is local, so managers, loaders and models know
nothing of remote storage. Copying runs in a pool; while a copy is under way the
versions that were handed on before stay aspired, because leaving them out would
unload them for a version that is not here yet.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from sources.remote_storage import is_remote, local_path
from sources.storage_path import StoragePath
from sources.version_cache import VersionCache
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import ResourceExhausted, ServingError, serving_error
from tfs.core.servable_data import AspiredVersions, ServableData
from tfs.core.servable_id import ServableId
from tfs.core.source import AspiredVersionsCallback, Outlet

log = logging.getLogger(__name__)

_LONG_S: Final = 0.005  # to tell the target of a servable
_REST: Final = 3  # times as long as that

# Between tries of a copy that failed: one of gigabytes that is damaged in the store would
# be taken over and over. Sources repeat themselves every half a minute.
_FIRST_PAUSE_S: Final = 15.0
_LAST_PAUSE_S: Final = 900.0

Run = Callable[[str, Callable[[], None]], object]
"""Takes a URL and what copies from there; runs it, soon or now, on any thread.

Raises RuntimeError where it takes nothing more.
"""

Versions = tuple[ServableData[StoragePath], ...]
Outcome = StoragePath | ServingError


@dataclass(slots=True)
class _Failures:
    """How often a copy failed, and when another try may come, by the clock."""

    num: int = 0
    rests_until_s: float = 0.0

    def note(self, now_s: float) -> None:
        """Counts another one."""
        self.rests_until_s = now_s + min(_FIRST_PAUSE_S * 2.0**self.num, _LAST_PAUSE_S)
        self.num += 1


@dataclass(slots=True)
class _Stream:
    """One servable's versions. Guarded by the adapter's lock."""

    wanted: AspiredVersions[StoragePath]
    outcomes: dict[StoragePath, Outcome] = field(default_factory=dict)
    pending: set[StoragePath] = field(default_factory=set)
    emitted: Versions = ()
    retired: list[StoragePath] = field(default_factory=list)
    failures: dict[StoragePath, _Failures] = field(default_factory=dict)
    is_stale: bool = False  # whether a copy has ended that the target was not told of
    rests_until_s: float = 0.0


class FetchingSourceAdapter:
    """Replaces remote paths by local copies of them. Thread-safe.

    A copy that fails is an error of its version, which shows in the status, and is
    tried again when the source repeats itself, after pauses that double up to a quarter
    of an hour. Copies of versions that are not
    aspired any more stay in use until their servable's next change: the manager may
    still serve them until the next version is loaded. So a bounded cache needs room
    for three versions of a model that is being swapped.
    """

    def __init__(
        self, cache: VersionCache, run: Run, clock: Clock | None = None
    ) -> None:
        self._cache = cache
        self._clock = clock or MonotonicClock()
        self._run = run
        self._outlet: Outlet[StoragePath] = Outlet()
        # Held while the target is called, which orders the calls for a name. Rank:
        # before any lock of the target, after the source's.
        self._turn = threading.Lock()
        # Guards the fields below; after _turn, and before the cache's alone.
        self._lock = threading.Lock()
        self._streams: dict[str, _Stream] = {}
        self._due: dict[str, None] = {}  # of which the target is to be told now

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
            return stream is not None and (
                bool(stream.pending) or stream.is_stale or stream.rests_until_s == inf
            )

    def close(self) -> None:
        """Makes later calls, and copies that end later, do nothing."""
        self._outlet.close()

    def _take(self, aspired: AspiredVersions[StoragePath]) -> None:
        if not self._outlet.wait_connected():
            return
        missing = []
        with self._lock:
            stream = self._streams.setdefault(aspired.name, _Stream(aspired))
            stream.wanted = aspired
            for data in aspired.versions:
                path = data.payload
                if path is None or not is_remote(path.path) or path in stream.pending:
                    continue
                if self._may_fetch(stream, path):
                    stream.outcomes.pop(path, None)
                    stream.pending.add(path)
                    missing.append((data.id, path))
            kept = {data.payload for data in aspired.versions}
            for path in [each for each in stream.failures if each not in kept]:
                del stream.failures[path]
            self._due[aspired.name] = None
        self._tell(waits=True)
        for servable_id, path in missing:
            try:
                self._run(path.path, functools.partial(self._fetch, servable_id, path))
            except RuntimeError:  # shutting down
                log.info("event=fetch_refused version=%s", servable_id.slashed)

    def _may_fetch(self, stream: _Stream, path: StoragePath) -> bool:
        """Whether a version is to be copied now: it is not here, and does not rest."""
        if isinstance(stream.outcomes.get(path), StoragePath):
            return False
        failures = stream.failures.get(path)
        return failures is None or self._clock.now() >= failures.rests_until_s

    def _fetch(self, servable_id: ServableId, path: StoragePath) -> None:
        outcome: Outcome
        try:
            outcome = self._cache.fetch(path)
        except Exception as error:
            outcome = serving_error(error, f"cannot fetch {servable_id.slashed}")
            log.warning(
                "event=fetch_failed version=%s error=%s", servable_id.slashed, outcome
            )
        with self._lock:
            stream = self._streams.get(servable_id.name)
            if stream is None or path not in stream.pending:
                if isinstance(outcome, StoragePath):
                    self._cache.release(outcome)
                return
            stream.pending.discard(path)
            stream.outcomes[path] = outcome
            if isinstance(outcome, StoragePath):
                stream.failures.pop(path, None)
            elif not isinstance(outcome, ResourceExhausted):  # which copied nothing
                stream.failures.setdefault(path, _Failures()).note(self._clock.now())
            stream.is_stale = True
            if not stream.pending or self._clock.now() >= stream.rests_until_s:
                self._due[servable_id.name] = None
        self._tell(waits=False)

    def _tell(self, *, waits: bool) -> None:
        """Tells the target what can be loaded now, of every servable that changed.

        Where another thread is at it already, that one tells this news too. To tell of
        thousands of versions takes a while: what ends during that time and some times
        as long after it waits for the next copy to end. The last one waits for nobody.

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
            waits = False  # what came since came from others

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
            stream.is_stale = False
            stream.rests_until_s = inf  # while it is told
            aspired = self._compose(stream)
        try:
            self._outlet.emit(aspired)
        except Exception:  # of one servable: the others are told
            log.exception("event=target_failed servable=%s", name)
        with self._lock:
            now_s = self._clock.now()
            took_s = now_s - begun_s
            stream.rests_until_s = now_s + (_REST * took_s if took_s > _LONG_S else 0.0)
            if stream.is_stale and now_s >= stream.rests_until_s:
                self._due[name] = None

    def _compose(self, stream: _Stream) -> AspiredVersions[StoragePath]:
        """Returns what can be loaded now, and gives up copies that no one needs."""
        wanted = {data.payload for data in stream.wanted.versions}
        stream.pending &= {path for path in wanted if path is not None}
        versions: list[ServableData[StoragePath]] = []
        for data in stream.wanted.versions:
            path = data.payload
            if path is None:
                versions.append(data)
            elif not is_remote(path.path):
                plain = local_path(path.path)
                versions.append(data.with_payload(replace(path, path=plain)))
            elif path not in stream.pending:
                outcome = stream.outcomes[path]
                versions.append(
                    data.with_payload(outcome)
                    if isinstance(outcome, StoragePath)
                    else data.with_error(outcome)
                )
        if stream.pending:
            told = {data.id for data in versions}
            versions += [d for d in stream.emitted if d.id not in told]
        before, stream.emitted = stream.emitted, tuple(versions)
        if {d.payload for d in stream.emitted} - {None, *(d.payload for d in before)}:
            self._retire(stream, wanted)
        if not stream.wanted.versions:
            self._streams.pop(stream.wanted.name, None)
            for outcome in [*stream.retired, *stream.outcomes.values()]:
                if isinstance(outcome, StoragePath):
                    self._cache.release(outcome)
        return replace(stream.wanted, versions=stream.emitted)

    def _retire(self, stream: _Stream, wanted: set[StoragePath | None]) -> None:
        """Gives up what was retired when something new was last handed on.

        Not what is retired now: until the new version is loaded the manager serves
        the old one. A failed copy hands nothing on, so it takes nothing away.
        """
        for copy in stream.retired:
            self._cache.release(copy)
        stream.retired = []
        emitted = {data.payload for data in stream.emitted}
        for path in [p for p in stream.outcomes if p not in wanted]:
            outcome = stream.outcomes[path]
            if isinstance(outcome, StoragePath):
                if outcome in emitted:
                    continue
                stream.retired.append(outcome)
            del stream.outcomes[path]
