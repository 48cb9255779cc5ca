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

from sources.remote_storage import is_remote, local_path
from sources.storage_path import StoragePath
from sources.version_cache import VersionCache
from tfs.core.errors import ServingError, serving_error
from tfs.core.servable_data import AspiredVersions, ServableData
from tfs.core.servable_id import ServableId
from tfs.core.source import AspiredVersionsCallback, Outlet

log = logging.getLogger(__name__)

Run = Callable[[str, Callable[[], None]], object]
"""Takes a URL and what copies from there; runs it, soon or now, on any thread.

Raises RuntimeError where it takes nothing more.
"""

Versions = tuple[ServableData[StoragePath], ...]
Outcome = StoragePath | ServingError


@dataclass(slots=True)
class _Stream:
    """One servable's versions. Confined to the adapter's turn."""

    wanted: AspiredVersions[StoragePath]
    outcomes: dict[StoragePath, Outcome] = field(default_factory=dict)
    pending: set[StoragePath] = field(default_factory=set)
    emitted: Versions = ()
    retired: list[StoragePath] = field(default_factory=list)


class FetchingSourceAdapter:
    """Replaces remote paths by local copies of them. Thread-safe.

    A copy that fails is an error of its version, which shows in the status, and is
    tried again when the source repeats itself. Copies of versions that are not
    aspired any more stay in use until their servable's next change: the manager may
    still serve them until the next version is loaded. So a bounded cache needs room
    for three versions of a model that is being swapped.
    """

    def __init__(self, cache: VersionCache, run: Run) -> None:
        self._cache = cache
        self._run = run
        self._outlet: Outlet[StoragePath] = Outlet()
        # Guards _streams, and is held while the target is called, which orders the
        # calls for a name. Rank: before any lock of the target, after the source's.
        self._turn = threading.Lock()
        self._streams: dict[str, _Stream] = {}

    def aspired_versions_callback(self) -> AspiredVersionsCallback[StoragePath]:
        """Returns the function for sources to call; harmless after ``close``."""
        return self._take

    def set_aspired_versions_callback(
        self, callback: AspiredVersionsCallback[StoragePath]
    ) -> None:
        """Connects the outgoing side; calls that waited for it go on."""
        self._outlet.connect(callback)

    def close(self) -> None:
        """Makes later calls, and copies that end later, do nothing."""
        self._outlet.close()

    def _take(self, aspired: AspiredVersions[StoragePath]) -> None:
        if not self._outlet.wait_connected():
            return
        missing = []
        with self._turn:
            stream = self._streams.setdefault(aspired.name, _Stream(aspired))
            stream.wanted = aspired
            for data in aspired.versions:
                path = data.payload
                if path is None or not is_remote(path.path) or path in stream.pending:
                    continue
                if not isinstance(stream.outcomes.get(path), StoragePath):
                    stream.outcomes.pop(path, None)
                    stream.pending.add(path)
                    missing.append((data.id, path))
            self._emit(stream)
        for servable_id, path in missing:
            try:
                self._run(path.path, functools.partial(self._fetch, servable_id, path))
            except RuntimeError:  # shutting down
                log.info("event=fetch_refused version=%s", servable_id.slashed)

    def _fetch(self, servable_id: ServableId, path: StoragePath) -> None:
        outcome: Outcome
        try:
            outcome = self._cache.fetch(path)
        except Exception as error:
            outcome = serving_error(error, f"cannot fetch {servable_id.slashed}")
            log.warning(
                "event=fetch_failed version=%s error=%s", servable_id.slashed, outcome
            )
        with self._turn:
            stream = self._streams.get(servable_id.name)
            if stream is None or path not in stream.pending:
                if isinstance(outcome, StoragePath):
                    self._cache.release(outcome)
                return
            stream.pending.discard(path)
            stream.outcomes[path] = outcome
            self._emit(stream)

    def _emit(self, stream: _Stream) -> None:
        """Tells the target what can be loaded now."""
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
        self._outlet.emit(replace(stream.wanted, versions=stream.emitted))

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
