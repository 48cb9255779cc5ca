"""Makes remote versions local before anybody is told to load them.

Behind this adapter every path is local, so managers, loaders and models know
nothing of remote storage. Copying runs in a pool; while a copy is under way the
versions that were handed on before stay aspired, because leaving them out would
unload them for a version that is not here yet.

A copy is kept, whatever room others want, while its version is aspired, while it serves
though it is aspired no more (its successors failed, or are on their way), and after that
as long as it is the one to go back to. Who comes back to a kept copy needs no store.
"""

from __future__ import annotations

import enum
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

_LONG_S: Final = 0.005  # to tell the target of a servable
_REST: Final = 3  # times as long as that

# Between tries of a copy that failed. A store that does not answer costs little to ask
# again; a copy of gigabytes that is damaged in the store would be taken over and over.
_FIRST_PAUSE_S: Final = 15.0
_FIRST_PAUSE_OF_STORE_S: Final = 1.0
_LAST_PAUSE_S: Final = 900.0

Run = Callable[[str, Callable[[], None]], object]
"""Takes a URL and what copies from there; runs it, soon or now, on any thread.

Raises RuntimeError where it takes nothing more.
"""

Schedule = Callable[[float, Callable[[], None]], None]
"""Runs a function, which is quick, at a time by the clock, on any thread."""

Versions = tuple[ServableData[StoragePath], ...]


class Service(enum.Enum):
    """What became of a version that was handed on."""

    GOES_ON = "goes on"
    """It loads, serves or unloads, or waits to: its files may be read."""
    SERVED = "served"
    """It was unloaded after it served: it may be gone back to."""
    NONE = "none"
    """It failed, or was never tried."""


@dataclass(slots=True)
class _Failures:
    """How often a copy failed, and when another try may come, by the clock."""

    num: int = 0
    rests_until_s: float = 0.0

    def note(self, error: ServingError, now_s: float) -> None:
        """Counts another one."""
        is_store = isinstance(error, Unavailable)
        first_s = _FIRST_PAUSE_OF_STORE_S if is_store else _FIRST_PAUSE_S
        self.rests_until_s = now_s + min(first_s * 2.0**self.num, _LAST_PAUSE_S)
        self.num += 1


@dataclass(frozen=True, slots=True)
class _Copy:
    """A version's local copy, in use. Immutable."""

    id: ServableId
    path: StoragePath


@dataclass(slots=True)
class _Stream:
    """One servable's versions. Guarded by the adapter's lock."""

    wanted: AspiredVersions[StoragePath]
    outcomes: dict[StoragePath, _Copy | ServingError] = field(default_factory=dict)
    pending: set[StoragePath] = field(default_factory=set)
    emitted: Versions = ()
    retired: dict[StoragePath, _Copy] = field(default_factory=dict)  # oldest first
    failures: dict[StoragePath, _Failures] = field(default_factory=dict)
    is_stale: bool = False  # whether a copy has ended that the target was not told of
    rests_until_s: float = 0.0


class FetchingSourceAdapter:
    """Replaces remote paths by local copies of them. Thread-safe.

    A copy that fails is an error of its version, which shows in the status, and is
    tried again after pauses that double up to a quarter of an hour: by itself if there
    is a ``schedule``, else when the source repeats itself. A bounded cache needs room for
    three versions of a model that is being swapped: the new one, the one that serves and
    the one before it.

    Args:
        cache: Has the copies.
        run: Runs the copying.
        clock: For pauses; None is the machine's.
        schedule: Runs what tries again; None leaves that to the source.
        service: Returns what became of a version; quick, takes no lock but a leaf. The
            default knows of none that its successors failed for.

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
        # Guards the fields below; after _turn, and before the cache's and what
        # ``service`` takes alone.
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
                if path in stream.retired:
                    stream.outcomes[path] = stream.retired.pop(path)
                elif self._may_fetch(stream, path):
                    stream.outcomes.pop(path, None)
                    stream.pending.add(path)
                    missing.append((data.id, path))
            kept = {data.payload for data in aspired.versions}
            for path in [each for each in stream.failures if each not in kept]:
                del stream.failures[path]
            if missing:
                self._make_room(stream)
            self._due[aspired.name] = None
        self._tell(waits=True)
        for servable_id, path in missing:
            self._submit(path, functools.partial(self._fetch, servable_id, path))

    def _may_fetch(self, stream: _Stream, path: StoragePath) -> bool:
        """Whether a version is to be copied now: it is not here, and does not rest."""
        if isinstance(stream.outcomes.get(path), _Copy):
            return False
        failures = stream.failures.get(path)
        return failures is None or self._clock.now() >= failures.rests_until_s

    def _fetch_again(self, servable_id: ServableId, path: StoragePath) -> None:
        """Copies what failed, unless it is not wanted any more, or another was quicker."""
        with self._lock:
            stream = self._streams.get(servable_id.name)
            if (
                stream is None
                or all(data.payload != path for data in stream.wanted.versions)
                or path in stream.pending
                or not self._may_fetch(stream, path)
            ):
                return
            stream.outcomes.pop(path, None)
            stream.pending.add(path)
        self._fetch(servable_id, path)

    def _fetch(self, servable_id: ServableId, path: StoragePath) -> None:
        outcome: _Copy | ServingError
        again_s: float | None = None
        try:
            outcome = _Copy(servable_id, self._cache.fetch(path))
        except Exception as error:
            outcome = serving_error(error, f"cannot fetch {servable_id.slashed}")
            log.warning(
                "event=fetch_failed version=%s error=%s", servable_id.slashed, outcome
            )
        with self._lock:
            stream = self._streams.get(servable_id.name)
            if stream is None or path not in stream.pending:
                if isinstance(outcome, _Copy):
                    self._cache.release(outcome.path)
                return
            stream.pending.discard(path)
            stream.outcomes[path] = outcome
            if isinstance(outcome, _Copy):
                stream.failures.pop(path, None)
            elif not isinstance(outcome, ResourceExhausted):  # which copied nothing
                failures = stream.failures.setdefault(path, _Failures())
                failures.note(outcome, self._clock.now())
                again_s = failures.rests_until_s
            stream.is_stale = True
            if not stream.pending or self._clock.now() >= stream.rests_until_s:
                self._due[servable_id.name] = None
        if again_s is not None and self._schedule is not None:
            again = functools.partial(self._fetch_again, servable_id, path)
            self._schedule(again_s, functools.partial(self._submit, path, again))
        self._tell(waits=False)

    def _submit(self, path: StoragePath, fetch: Callable[[], None]) -> None:
        try:
            self._run(path.path, fetch)
        except RuntimeError:  # shutting down
            log.info("event=fetch_refused url=%s", path.path)

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
                    data.with_payload(outcome.path)
                    if isinstance(outcome, _Copy)
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
            for outcome in [*stream.retired.values(), *stream.outcomes.values()]:
                if isinstance(outcome, _Copy):
                    self._cache.release(outcome.path)
        return replace(stream.wanted, versions=stream.emitted)

    def _make_room(self, stream: _Stream) -> None:
        """Gives up what need not be kept, before something new is copied."""
        wanted = {data.payload for data in stream.wanted.versions}
        for path, outcome in list(stream.outcomes.items()):
            if path in wanted or not isinstance(outcome, _Copy):
                continue
            if self._service(outcome.id) is Service.NONE:
                self._cache.release(outcome.path)
                del stream.outcomes[path]
        self._forget_retired(stream)

    def _retire(self, stream: _Stream, wanted: set[StoragePath | None]) -> None:
        """Notes what is not aspired any more, now that something new was handed on.

        Until that is loaded the manager serves it. A failed copy hands nothing on, so it
        takes nothing away.
        """
        self._forget_retired(stream)
        emitted = {data.payload for data in stream.emitted}
        for path in [p for p in stream.outcomes if p not in wanted]:
            outcome = stream.outcomes[path]
            if isinstance(outcome, _Copy):
                if outcome.path in emitted:
                    continue
                stream.retired[path] = outcome
            del stream.outcomes[path]

    def _forget_retired(self, stream: _Stream) -> None:
        """Gives up what neither goes on nor is the last that served."""
        services = {p: self._service(copy.id) for p, copy in stream.retired.items()}
        served = [p for p, service in services.items() if service is Service.SERVED]
        for path, service in services.items():
            if service is not Service.GOES_ON and path not in served[-1:]:
                self._cache.release(stream.retired.pop(path).path)
