"""Aspires the versions it finds in directories.

Listing is the truth; what the kernel reports of a directory is a hint to list it now.
The source lists a base path on such hints, when a directory may have settled, and from
time to time in any case, because events get lost and some file systems give none.

This module has the source's thread and its rounds. The :class:`~sources.agenda.Agenda`,
which any thread may call, knows what to list next, and when. A listing is made by
:class:`~sources.listing.BasePathLister`, and a servable's
:class:`~sources.aspired_stream.AspiredStream` decides what to emit afterwards.

Different from TensorFlow Serving on purpose (docs/divergences.md): a base path that
cannot be read affects only its own servable, and an empty listing does not unload
the last version. (sources/storage_path/file_system_storage_path_source.h.)
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from sources.agenda import REPOSITORY, Agenda, Look, directory_of
from sources.aspired_stream import AspiredStream
from sources.listing import BasePathLister, Listing, Remembered, unreadable
from sources.model_repository import ModelRepository, RepositoryLook
from sources.remote.storage import RemoteFileSystem
from sources.servable_to_monitor import (
    FileSystemSourceOptions,
    ServableToMonitor,
    StoragePath,
    by_name,
)
from sources.storage.file_system import (
    PATIENCE_S,
    AnyFileSystem,
    FileSystem,
    StorageThreads,
    is_remote,
)
from sources.watcher import DirectoryWatcher, InotifyWatcher
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import NotFound
from tfs.core.loop.pacing import yield_to_loads
from tfs.core.source import AspiredVersions, AspiredVersionsCallback, Outlet

__all__ = ["FileSystemSource", "FileSystemSourceOptions", "OnModels"]

log = logging.getLogger(__name__)

OnModels = Callable[[Sequence[ServableToMonitor]], object]

# A copy in progress raises events by the hundred. So there is at least this pause
# between listings, and one as long as the last listing took.
_MIN_GAP_S: Final = 0.05
_LONGEST_CLOSE_S: Final = 5.0
# For each base path, so that ten thousand of them cost a few hundredths of a core: the
# least pause between two listings that nothing asks for, and between two checks.
_RESCAN_S: Final = 0.03
_CHECK_S: Final = 0.0003
# The first listing of a store imports its driver, which takes seconds on a busy machine.
_STORE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Finding:
    """What the last listing of a base path showed. Immutable."""

    problems: tuple[str, ...]
    at_hand: tuple[int, ...]
    outlook: bool | None


class FileSystemSource:
    """A source of version directories found under base paths. Thread-safe.

    Calls its target on the thread named "source", or, while that does not run, on the
    thread that calls ``poll_once``, ``step`` or ``update_config``.

    If the files of an aspired version change, it is aspired again with another
    fingerprint, once they no longer change; whether to load it again is up to the
    target. The files of a version that serves should never be touched.
    """

    def __init__(
        self,
        options: FileSystemSourceOptions,
        *,
        file_system: FileSystem | None = None,
        clock: Clock | None = None,
        watcher: DirectoryWatcher | None = None,
        on_looked: Callable[[], None] = lambda: None,
        storage: StorageThreads | None = None,
    ) -> None:
        """Stores its parts; nothing is read yet.

        Args:
            options: How it looks.
            file_system: The file system that it reads; None is the local one.
            clock: The clock of all its times.
            watcher: The source of events; None is inotify, when started.
            on_looked: Called after each round of looks, with ``problems`` up to
                date, on the scanning thread; quick.
            storage: Threads that look at places which may not answer (a store, a
                network mount), so that these hold up no other base path; None uses the
                scanning thread. Owned by the caller.

        """
        self._options = options
        self._file_system = file_system or AnyFileSystem(RemoteFileSystem())
        self._clock = clock or MonotonicClock()
        self._lister = BasePathLister(self._file_system, options, self._clock)
        self._on_looked = on_looked
        self._storage = storage
        self._outlet: Outlet[StoragePath] = Outlet()
        self._agenda = Agenda(by_name(options.servables), self._clock)
        self._on_models: OnModels = self.update_config
        # Replaced as a whole, both; the latter is asked for with each model's status.
        self._findings: Mapping[str, _Finding] = {}
        self._problems: Mapping[str, tuple[str, ...]] = {}
        self._thread: threading.Thread | None = None
        # Held during a whole round, which orders the calls for each name. Guards the
        # fields below. Rank: before the agenda's lock and any lock of a target. The
        # event thread never takes it.
        self._turn = threading.Lock()
        self._streams: dict[str, AspiredStream] = {}
        # Those to be published anew, and those whose base paths other threads list.
        self._told: set[str] = set()
        self._handed_over: set[str] = set()
        self._repository: ModelRepository | None = None
        self._repository_look: Look | None = None
        self._watcher = watcher or InotifyWatcher()
        # Why nothing is watched; "" while that was not tried, None once it is.
        self._why_unwatched: str | None = ""
        # What is watched: base paths by the keys of their looks.
        self._watched: dict[str, str] = {}
        # When to check that they are the same directories; never before the thread runs.
        self._check_s = math.inf
        # When to look for threads that hang.
        self._relief_s = math.inf
        self._listed: Mapping[str, ServableToMonitor] = {}  # in the last round

    # -- wiring ----------------------------------------------------------------

    def set_aspired_versions_callback(
        self, callback: AspiredVersionsCallback[StoragePath]
    ) -> None:
        """Connects the target; scanning starts with ``start`` or ``poll_once``."""
        self._outlet.set_aspired_versions_callback(callback)
        self._agenda.open()

    def start(self) -> None:
        """Starts to watch and to scan, on a thread of the source's own.

        Raises:
            NotFound: ``require_versions`` is set and a servable has none; nothing
                was started.

        """
        self._check_has_versions(self._agenda.servables.values())
        if self._options.poll_wait_s < 0 or self._thread or self._agenda.is_closed:
            return
        self._thread = threading.Thread(target=self._run, name="source", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops scanning, then watching; no call comes afterwards. Idempotent.

        Waits for a look in progress, but no more than five seconds, because a dead
        network mount must not keep the server from ending. Not to be called by a
        target.
        """
        self._agenda.close()
        self._outlet.close()
        thread = self._thread
        if thread is not None:
            thread.join(_LONGEST_CLOSE_S)
            if thread.is_alive():
                log.warning("event=source_hangs in='a look at a base path'")
                return
        with self._turn:
            self._watcher.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- configuration ---------------------------------------------------------

    def update_config(
        self, servables: Iterable[ServableToMonitor], *, looks_at_all: bool = True
    ) -> None:
        """Monitors exactly ``servables`` from now on; never waits for a scan.

        All of them (or those that are new or changed, unless ``looks_at_all``) are looked
        at immediately, and for those left out an empty set is emitted. The source's thread
        does that if it runs; otherwise it is done before this returns.

        Raises:
            InvalidArgument: A name occurs twice; nothing changed.
            NotFound: ``require_versions`` is set and one has none; nothing changed.

        """
        wanted = by_name(servables)
        self._check_has_versions(wanted.values())
        self._agenda.configure(wanted, looks_at_all=looks_at_all)
        if self._thread is None and self._outlet.is_connected:
            self.step()

    def watch_repository(
        self, repository: ModelRepository, on_models: OnModels | None = None
    ) -> None:
        """Follows a directory of models too; call it once, before ``start``.

        Args:
            repository: The directory; from now on the source's own.
            on_models: Called with the models whenever they change, on the scanning
                thread. A server that lays overrides over them calls ``update_config``
                itself. None monitors exactly these models.

        """
        self._repository = repository
        if on_models is not None:
            self._on_models = on_models
        self._agenda.add_repository(repository.path)

    def wait_applied(self, deadline_s: float | None = None) -> bool:
        """Blocks until every configuration given so far was looked at and emitted.

        Returns whether that was so by the (monotonic) deadline.
        """
        return self._agenda.wait_applied(deadline_s)

    @property
    def servables(self) -> Mapping[str, ServableToMonitor]:
        """The monitored servables, by name; a snapshot."""
        return dict(self._agenda.servables)

    def problems(self) -> Mapping[str, tuple[str, ...]]:
        """Returns what is wrong with each servable's base path, for status.

        Servables without a problem, or not looked at yet, are absent.
        """
        return self._problems

    def at_hand(self, name: str) -> Sequence[int]:
        """Returns the versions that the last look at a base path showed, lowest first.

        They may or may not be ready. There are none before the first look.
        """
        found = self._findings.get(name)
        return () if found is None else found.at_hand

    def outlook(self, name: str) -> bool | None:
        """Returns whether the last look at a servable found a version to serve.

        None if there may be one soon, because something is settling. If it is False,
        ``problems`` says why, and whatever is still aspired was found earlier.
        """
        found = self._findings.get(name)
        return True if found is None else found.outlook

    @property
    def repository_problem(self) -> str:
        """The problem of the directory of models; empty if there is none."""
        return self._repository.problem if self._repository is not None else ""

    # -- scanning --------------------------------------------------------------

    def poll_once(self) -> None:
        """Looks at every servable now, on this thread."""
        self.look_soon()
        self.step()

    def look_soon(self) -> None:
        """Makes the source's thread look at everything now; returns immediately."""
        self._agenda.insist()

    def say_again(self, name: str) -> None:
        """Looks at a servable, and emits its versions again even if nothing changed.

        Targets then try again what failed before. If the source's thread runs, that
        does it; otherwise it is done before this returns. This never waits for a scan,
        but ``wait_applied`` does.
        """
        self._agenda.repeat(name)
        if self._thread is None and self._outlet.is_connected:
            self.step()

    def mark_changed(self, path: str) -> None:
        """Notes that something changed in a base path. Thread-safe."""
        self._agenda.mark_changed(path)

    def step(self) -> float | None:
        """Lists what is due, on this thread; blocks while files are listed.

        Returns:
            When (by the clock) the next listing is due; None if only an event or a
            new configuration brings one, or nothing is connected yet.

        """
        if not self._outlet.is_connected:
            return None
        with self._turn:
            models_changed = self._take_arrived()
            look = self._agenda.begin(REPOSITORY)
            if look is not None:
                models_changed |= self._list_repository(look)
        if models_changed:
            self._tell_models()
        with self._turn:
            if self._clock.now() >= self._check_s:
                self._check_watched()
            now = self._agenda.take_round()
            if now.servables is not self._listed:
                self._listed = now.servables
                for name in self._streams.keys() - now.servables.keys():
                    del self._streams[name]
                    self._told.add(name)
                    reason = f"{name} is not configured any more"
                    self._emit(AspiredVersions(name, (), reason))
                self._end_other_watches(now.servables.values())
        for look in now.due:
            yield_to_loads()
            with self._turn:
                # Another thread's step may have taken another configuration since.
                servable = self._listed.get(look.key)
                if servable is not None:
                    self._list(servable, look)
        with self._turn:
            self._give_up_waiting()
            self._publish(now.number)
        self._on_looked()
        return self._agenda.next_due_s(self._relief_s)

    def _run(self) -> None:
        if self._options.watch and self._options.poll_wait_s > 0:
            self._check_s = -math.inf
            self._agenda.insist()  # what was listed before has to be watched as well
        while self._agenda.wait_due(min(self._check_s, self._relief_s)):
            try:
                self.step()
            except Exception:
                log.exception("event=source_step_failed")

    # -- base paths --------------------------------------------------------------

    def _list(self, servable: ServableToMonitor, look: Look) -> None:
        """Lists a base path, or has another thread do so."""
        stream = self._streams.setdefault(servable.name, AspiredStream(servable))
        stream.configure(servable)
        stream.look = look
        self._told.add(servable.name)
        base_path = servable.base_path
        try:
            listing = functools.partial(
                self._lister.listing, servable, stream.remembered
            )
            limit_s = _STORE_S if is_remote(base_path) else PATIENCE_S
            if self._hand_over(base_path, look, listing, limit_s):
                self._handed_over.add(servable.name)
            else:
                self._take(stream, look, listing())
        except Exception as error:  # a fault of one base path must not stop the others
            log.exception("event=listing_failed servable=%s", servable.name)
            problem = f"cannot look at {base_path} of {servable.name}: {error}"
            self._take(stream, look, unreadable(servable, self._clock.now(), problem))

    def _take(self, stream: AspiredStream, look: Look, found: Listing) -> None:
        """Emits what was found, and sets the time of the next listing."""
        options, now_s = self._options, self._clock.now()
        self._told.add(stream.servable.name)
        aspired = stream.take(found, now_s, unload_when_empty=options.unload_when_empty)
        if aspired is not None:
            self._emit(aspired)
        soonest_s = now_s + max(_MIN_GAP_S, now_s - found.begun_s)
        # What was not watched while it was listed is reported as changed by this.
        is_watched = found.is_readable and self._watch(
            look, found.servable.base_path, found.folders
        )
        rescan_s = max(options.rescan_s, _RESCAN_S * len(self._streams))
        has_events = is_watched and not found.is_blind
        due_s = self._next_poll_s(rescan_s, has_events=has_events)
        if found.settled_at_s is not None and options.poll_wait_s >= 0:
            due_s = min(due_s, max(found.settled_at_s, soonest_s))
        self._agenda.end(look, soonest_s, due_s)

    def _next_poll_s(self, rescan_s: float, *, has_events: bool) -> float:
        """Returns when to list again if nothing asks for it earlier; infinite for never."""
        poll_wait_s = self._options.poll_wait_s
        if poll_wait_s <= 0:
            return math.inf
        return self._clock.now() + (rescan_s if has_events else poll_wait_s)

    def _emit(self, aspired: AspiredVersions[StoragePath]) -> None:
        try:
            self._outlet.emit(aspired)
        except Exception:
            # A fault of the target must not stop the other servables.
            log.exception("event=target_failed servable=%s", aspired.name)

    def _publish(self, number: int) -> None:
        """Publishes the findings, and then that the configuration was listed."""
        findings, problems = dict(self._findings), dict(self._problems)
        for name in self._told:
            findings.pop(name, None)
            problems.pop(name, None)
            stream = self._streams.get(name)
            if stream is not None:
                at_hand, outlook = stream.at_hand or (), stream.outlook
                findings[name] = _Finding(stream.problems, at_hand, outlook)
                if stream.problems:
                    problems[name] = stream.problems
        self._told.clear()
        self._findings, self._problems = findings, problems
        waiting = ((name, self._streams.get(name)) for name in self._handed_over)
        awaited = {name for name, each in waiting if each and each.is_awaited}
        self._agenda.end_round(number, awaited)

    def _check_has_versions(self, servables: Iterable[ServableToMonitor]) -> None:
        if not self._options.require_versions:
            return
        for servable in servables:
            if not self._lister.listing(servable, Remembered()).versions:
                raise NotFound(
                    f"Unable to find a numerical version path for servable "
                    f"{servable.name} at: {servable.base_path}"
                )

    # -- events --------------------------------------------------------------------

    def _watch(self, look: Look, path: str, folders: Sequence[str]) -> bool:
        """Watches a base path and directories in it; returns whether that is so now.

        It is not if it is a URL, or if it may not answer: there the kernel reports no
        changes of others, and watching a directory means asking for it.
        """
        self._watched.pop(look.key, None)
        if self._check_s == math.inf or is_remote(path):
            return False
        if self._file_system.place(path):
            return False
        if self._has_watcher() and self._watcher.watch(directory_of(path), folders):
            self._watched[look.key] = directory_of(path)
        return look.key in self._watched

    def _check_watched(self) -> None:
        """Has listed what has become another directory: no event tells of that."""
        pause_s = max(self._options.poll_wait_s, _CHECK_S * len(self._watched))
        self._check_s = self._clock.now() + pause_s
        for key, path in self._watched.items():
            if not self._watcher.is_current(path):
                self._agenda.insist([key])

    def _has_watcher(self) -> bool:
        """Starts the watcher unless it runs; tried again, as others give back what they took."""
        if self._why_unwatched is None:
            return True
        try:
            self._watcher.start(self.mark_changed)
        except OSError as error:
            if str(error) != self._why_unwatched:
                self._why_unwatched = str(error)
                log.warning("event=watcher_failed instead=polling error=%s", error)
            return False
        self._why_unwatched = None
        return True

    def _end_other_watches(self, servables: Iterable[ServableToMonitor]) -> None:
        paths = [servable.base_path for servable in servables]
        if self._repository is not None:
            paths.append(self._repository.path)
        kept = {directory_of(path) for path in paths}
        self._watcher.keep(kept)
        self._watched = {k: path for k, path in self._watched.items() if path in kept}

    # -- places that may not answer ------------------------------------------------

    def _hand_over(
        self,
        path: str,
        look: Look,
        listing: Callable[[], Listing | RepositoryLook],
        limit_s: float,
    ) -> bool:
        """Has a thread for its place list a path; returns False if it always answers."""
        place = self._file_system.place(path)
        if self._storage is None or not place:
            return False

        with contextlib.suppress(RuntimeError):  # closing
            look.call = self._storage.submit(
                place, lambda: self._agenda.arrive(look, listing()), limit_s
            )
        return True

    def _take_arrived(self) -> bool:
        """Takes what other threads have listed; returns whether the models changed."""
        changed = False
        for look, found in self._agenda.take_arrived():
            if isinstance(found, RepositoryLook):
                changed |= self._take_repository(look, found)
                continue
            name = found.servable.name
            stream, servable = self._streams.get(name), self._agenda.servables.get(name)
            if stream is not None and found.servable == servable:
                stream.configure(servable)
                self._take(stream, look, found)
            else:  # another configuration has asked for another listing
                self._agenda.end(look, self._clock.now(), math.inf)
        return changed

    def _give_up_waiting(self) -> None:
        """Reports places that do not answer."""
        if self._storage is None:
            return
        relief_s = self._storage.relieve()
        self._relief_s = math.inf if relief_s is None else relief_s
        for name in list(self._handed_over):
            stream = self._streams.get(name)
            if stream is None or stream.look is None or not stream.look.is_open:
                self._handed_over.discard(name)
                continue
            aspired = stream.give_up_waiting(self._clock.now())
            self._told.add(name)
            if aspired is not None:
                self._emit(aspired)
        look = self._repository_look
        call = None if look is None else look.call
        if self._repository is not None and call is not None and call.is_late:
            self._repository.note_late(call.limit_s)

    # -- the directory of models ---------------------------------------------------

    def _list_repository(self, look: Look) -> bool:
        """Lists the models, or has another thread do so; returns whether they changed."""
        repository = self._repository
        if repository is None:
            return False
        self._repository_look = look
        listing = functools.partial(repository.examine, self._file_system)
        if self._hand_over(repository.path, look, listing, PATIENCE_S):
            return False
        return self._take_repository(look, listing())

    def _take_repository(self, look: Look, found: RepositoryLook) -> bool:
        repository = self._repository
        if repository is None:
            return False
        changed = repository.take(found)
        is_watched = found.models is not None and self._watch(
            look, repository.path, found.folders
        )
        has_events = is_watched and not found.is_blind
        due_s = self._next_poll_s(self._options.rescan_s, has_events=has_events)
        self._agenda.end(look, self._clock.now() + _MIN_GAP_S, due_s)
        return changed

    def _tell_models(self) -> None:
        repository = self._repository
        if repository is None:
            return
        try:
            self._on_models(repository.models or ())
        except Exception:
            log.exception("event=repository_models_refused path=%s", repository.path)
