"""Aspires the versions it finds in directories.

The source looks at a base path when the kernel says that something changed below
it, when a directory may have settled, and from time to time in any case, because
events get lost and some file systems give none. Looking is :func:`sources.scan.scan`,
and what to say then :func:`sources.decision.decide`, both pure; this file decides
when to look, and keeps what must be remembered.

Different from TensorFlow Serving on purpose (docs/divergences.md): a base path that
cannot be read affects only its own servable, and an empty listing does not unload
the last version. (sources/storage_path/file_system_storage_path_source.h.)
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from sources.decision import Versions, decide
from sources.directory_watcher import DirectoryWatcher, WatchdogWatcher
from sources.file_system_options import FileSystemSourceOptions, by_name
from sources.look import Look, take_look
from sources.model_repository import ModelRepository, RepositoryLook
from sources.path_index import PathIndex
from sources.remote_storage import AnyFileSystem, is_remote, local_path
from sources.scan import ServableToMonitor, Sighting
from sources.storage import FileSystem
from sources.storage_path import StoragePath
from sources.storage_threads import StorageCall, StorageThreads
from sources.version_policy import list_versions
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import NotFound
from tfs.core.right_of_way import make_way
from tfs.core.servable_data import AspiredVersions
from tfs.core.source import AspiredVersionsCallback, Outlet

__all__ = ["FileSystemSource", "FileSystemSourceOptions", "OnModels"]

log = logging.getLogger(__name__)

OnModels = Callable[[Sequence[ServableToMonitor]], object]

# A copy in progress raises events by the hundred: look at most this often, and rest for
# as long as a look took.
_MIN_GAP_S: Final = 0.05
# What is said again unasked: repairs a missed call, retries what failed to convert.
_REPEAT_S: Final = 30.0
_LONGEST_CLOSE_S: Final = 5.0


@dataclass(slots=True)
class _Record:
    """What the source remembers of one servable. Confined to the scanning turn."""

    servable: ServableToMonitor
    sightings: Mapping[str, Sighting] = field(default_factory=dict)
    at_hand: tuple[int, ...] | None = None  # by the last look; None before any
    emitted: Versions | None = None
    emitted_s: float = 0.0
    problems: tuple[str, ...] = ()
    is_new: bool = True  # not looked at under this configuration yet
    watched: bool = False
    is_late: bool = False  # whether it was said that its base path does not answer
    # Guarded by _changed: the look that another thread takes, whether somebody asked
    # for one since that began, and what it showed.
    call: StorageCall | None = None
    place: str = ""
    is_outdated: bool = False
    look: Look | None = None


class FileSystemSource:
    """A source of version directories found under base paths. Thread-safe.

    Calls its target from the thread named "source", or, while that does not run,
    from whoever calls ``poll_once``, ``step`` or ``update_config``.

    A version whose files change after it was aspired is aspired again, with another
    fingerprint in its payload, once they are still; whether to load it anew is the
    target's business. The files of a version that serves should never be touched.
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
            file_system: What it reads; None is the local one.
            clock: What it goes by.
            watcher: Where events come from; None is watchdog, when started.
            on_looked: Called after each round of looks, with ``problems`` up to
                date, on the scanning thread; quick.
            storage: Looks at what may not answer, a store or a network mount, so that
                it holds up no other base path; None is the scanning thread. Not the
                source's own.

        """
        self._options = options
        self._file_system = file_system or AnyFileSystem()
        self._clock = clock or MonotonicClock()
        self._watcher = watcher
        self._on_looked = on_looked
        self._storage = storage
        self._outlet: Outlet[StoragePath] = Outlet()
        # Held by whoever scans, for as long as that takes; it orders the calls for
        # each name. Guards _records, _watching, _pulse_s. Rank: before _changed and before
        # any lock of a target. Never taken by the event thread.
        self._turn = threading.Lock()
        self._records: dict[str, _Record] = {}
        self._watching = False
        self._pulse_s = 0.0
        # Guards every field below; leaf: nothing is read, called or emitted under it.
        self._changed = threading.Condition()
        self._servables = by_name(options.servables)
        self._index = _index(self._servables)
        self._due_s: dict[str, float] = {}
        self._soonest_s: dict[
            str, float
        ] = {}  # before which nothing is looked at again
        self._removed: list[str] = []
        self._config_changed = True
        self._storage_due_s = float("inf")
        self._awaited: set[str] = set()  # looks of the configuration taken in last
        self._awaited_asked = 0  # its number
        self._asked = 0  # configurations accepted
        self._applied = 0  # configurations whose servables were all looked at
        self._published: Mapping[str, tuple[str, ...]] = {}
        self._at_hand: Mapping[str, tuple[int, ...]] = {}
        self._thread: threading.Thread | None = None
        self._closed = False
        self._repository: ModelRepository | None = None
        self._on_models: OnModels = self.update_config
        self._repository_due_s = float("inf")
        self._repository_looked_s = float("-inf")
        self._is_repository_watched = False  # the turn's
        self._repository_call: StorageCall | None = None
        self._repository_look: RepositoryLook | None = None
        self._mark_all_locked()

    # -- wiring ----------------------------------------------------------------

    def set_aspired_versions_callback(
        self, callback: AspiredVersionsCallback[StoragePath]
    ) -> None:
        """Connects the target; scanning starts with ``start`` or ``poll_once``."""
        self._outlet.connect(callback)
        with self._changed:
            self._changed.notify_all()

    def start(self) -> None:
        """Starts to watch and to scan, on a thread of the source's own.

        Raises:
            NotFound: ``require_versions`` is set and a servable has none; nothing
                was started.

        """
        self._check_has_versions(self._servables.values())
        if self._options.poll_wait_s < 0:
            return
        with self._changed:
            if self._thread is not None or self._closed:
                return
            self._thread = threading.Thread(
                target=self._run, name="source", daemon=True
            )
        self._thread.start()

    def close(self) -> None:
        """Stops scanning, then watching; no call comes afterwards. Idempotent.

        Waits for a look in progress, up to five seconds: a dead network mount
        must not keep the server from ending. Not to be called by a target.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        self._outlet.close()
        if thread is not None:
            thread.join(_LONGEST_CLOSE_S)
            if thread.is_alive():
                log.warning("event=source_hangs in=a look at a base path")
                return
        with self._turn:
            if self._watcher is not None:
                self._watcher.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- configuration ---------------------------------------------------------

    def update_config(self, servables: Iterable[ServableToMonitor]) -> None:
        """Monitors exactly ``servables`` from now on; never waits for a scan.

        All of them are looked at at once, those left out get one empty set: by the
        source's thread if it runs, else before this returns.

        Raises:
            InvalidArgument: A name occurs twice; nothing changed.
            NotFound: ``require_versions`` is set and one has none; nothing changed.

        """
        wanted = by_name(servables)
        self._check_has_versions(wanted.values())
        index = _index(wanted)
        with self._changed:
            before = self._servables
            self._servables = wanted
            self._index = index
            now_s = self._clock.now()
            # The unchanged ones too: whoever reloads by hand wants to be up to date,
            # above all where nothing is polled.
            self._due_s = dict.fromkeys(wanted, now_s)
            for name in before.keys() - wanted.keys():
                self._soonest_s.pop(name, None)
                self._removed.append(name)
            self._config_changed = True
            self._asked += 1
            threaded = self._thread is not None
            self._changed.notify_all()
        if not threaded and self._outlet.is_connected:
            self.step()

    def watch_repository(
        self, repository: ModelRepository, on_models: OnModels | None = None
    ) -> None:
        """Looks after a directory of models too; call it once, before ``start``.

        Args:
            repository: The directory; from now on the source's own.
            on_models: Told the models whenever they change, on the scanning thread;
                None monitors exactly them. A server that lays overrides over them
                calls ``update_config`` itself.

        """
        with self._changed:
            self._repository = repository
            if on_models is not None:
                self._on_models = on_models
            self._repository_due_s = self._clock.now()
            self._changed.notify_all()

    def wait_applied(self, deadline_s: float | None = None) -> bool:
        """Blocks until every configuration given so far was looked at and emitted.

        Returns whether it was by the (monotonic) deadline.
        """
        with self._changed:
            wanted = self._asked
            while self._applied < wanted and not self._closed:
                now_s = self._clock.now()
                if deadline_s is not None and now_s >= deadline_s:
                    return False
                self._clock.wait(self._changed, deadline_s)
            return self._applied >= wanted

    @property
    def servables(self) -> Mapping[str, ServableToMonitor]:
        """What is monitored, by name; a snapshot."""
        return dict(self._servables)

    def problems(self) -> Mapping[str, tuple[str, ...]]:
        """Returns what is wrong with each servable's base path, for status.

        Servables without a problem, or not looked at yet, are absent.
        """
        return self._published

    def at_hand(self, name: str) -> Sequence[int]:
        """Returns the versions that the last look at a base path showed, lowest first.

        Ready or not; none before the first look.
        """
        return self._at_hand.get(name, ())

    @property
    def repository_problem(self) -> str:
        """What is wrong with the directory of models; empty if nothing."""
        return self._repository.problem if self._repository is not None else ""

    # -- scanning --------------------------------------------------------------

    def poll_once(self) -> None:
        """Looks at every servable now, on this thread."""
        with self._changed:
            self._mark_all_locked()
            if self._repository is not None:
                self._repository_due_s = self._clock.now()
        self.step()

    def mark_changed(self, path: str) -> None:
        """Notes that something at, above or below ``path`` changed. Thread-safe."""
        now_s = self._clock.now()
        with self._changed:
            marked = False
            if self._repository is not None:
                root = local_path(self._repository.path).rstrip("/")
                # A model, or the first version of one.
                below = path.removeprefix(root + "/")
                if path == root or (below != path and below.count("/") <= 1):
                    soonest_s = max(now_s, self._repository_looked_s + _MIN_GAP_S)
                    self._repository_due_s = min(self._repository_due_s, soonest_s)
                    marked = True
            for name in self._index.find(path):
                wanted_s = max(now_s, self._soonest_s.get(name, now_s))
                if wanted_s < self._due_s.get(name, float("inf")):
                    self._due_s[name] = wanted_s
                    marked = True
            if marked:
                self._changed.notify_all()

    def step(self) -> float | None:
        """Looks at what is due, on this thread; blocks while files are listed.

        Returns:
            When (by the clock) the next look is due; None if only an event or a
            new configuration brings one, or nothing is connected yet.

        """
        if not self._outlet.is_connected:
            return None
        make_way()
        self._look_at_repository()
        with self._turn:
            with self._changed:
                servables = self._servables
                asked = self._asked
                removed, self._removed = self._removed, []
                config_changed, self._config_changed = self._config_changed, False
                now_s = self._clock.now()
                due = [n for n, due_s in self._due_s.items() if due_s <= now_s]
            for name in removed:
                if name in servables:  # left out and back before anybody looked
                    continue
                if self._records.pop(name, None) is not None:
                    reason = f"{name} is not configured any more"
                    self._emit(AspiredVersions(name, (), reason))
            if config_changed and self._watching:
                self._watch(servables.values())
            if self._watching and now_s >= self._pulse_s:
                self._pulse_s = now_s + self._options.poll_wait_s
                due += self._find_stale(servables, due)
                self._mark_stale_repository(now_s)
            for name in due:
                if name in servables:
                    self._look(servables[name])
            self._note_late()
            published = {n: r.problems for n, r in self._records.items() if r.problems}
            at_hand = {n: r.at_hand or () for n, r in self._records.items()}
            with self._changed:
                self._published = published
                self._at_hand = at_hand
                self._note_applied_locked(asked)
                self._changed.notify_all()
                next_due_s = self._next_due_s_locked()
        self._on_looked()
        return next_due_s

    def _run(self) -> None:
        if self._options.watch is not False and self._options.poll_wait_s > 0:
            self._start_watcher()
        while True:
            with self._changed:
                while not self._closed and not self._is_due_locked():
                    self._clock.wait(self._changed, self._next_due_s_locked())
                if self._closed:
                    return
            try:
                self.step()
            except Exception:
                log.exception("event=source_step_failed")

    def _start_watcher(self) -> None:
        with self._turn:
            if self._watcher is None:
                self._watcher = WatchdogWatcher()
            try:
                self._watcher.start(self.mark_changed)
                self._watching = True
                with self._changed:
                    # Those that a step before this thread took in are to be watched.
                    self._config_changed = True
            except OSError as error:
                log.warning("event=watcher_failed polling_instead error=%s", error)

    def _is_due_locked(self) -> bool:
        if not self._outlet.is_connected:
            return False
        if self._removed or self._config_changed:
            return True
        due_s = self._next_due_s_locked()
        return due_s is not None and due_s <= self._clock.now()

    def _next_due_s_locked(self) -> float | None:
        due_s: float | None = min(
            [*self._due_s.values(), self._repository_due_s, self._storage_due_s]
        )
        if due_s == float("inf"):
            due_s = None
        if self._watching and (self._servables or self._repository is not None):
            return self._pulse_s if due_s is None else min(due_s, self._pulse_s)
        return due_s

    def _look_at_repository(self) -> None:
        """Lists the directory of models if that is due; hands on what it found."""
        repository = self._repository
        with self._changed:
            now_s = self._clock.now()
            if repository is None or self._repository_due_s > now_s:
                return
            self._repository_due_s = float("inf")
            if self._repository_call is not None:
                return  # due again when that has ended
            self._repository_looked_s = now_s
            look, self._repository_look = self._repository_look, None
        with self._turn:
            watched = self._watching and self._wants_watch(repository.path)
            if watched and self._watcher is not None:
                watched = self._watcher.ensure(local_path(repository.path))
            self._is_repository_watched = watched
            place = self._file_system.place(repository.path)
            if look is None and place and self._storage is not None:
                self._begin_repository_look(self._storage, place, repository)
                return
            changed = self._take_repository_look(
                repository, look or repository.examine(self._file_system)
            )
        with self._changed:
            if self._options.poll_wait_s > 0:
                options = self._options
                wait_s = options.rescan_s if watched else options.poll_wait_s
                self._repository_due_s = min(self._repository_due_s, now_s + wait_s)
        if changed and repository.models is not None:
            try:
                self._on_models(repository.models)
            except Exception:
                log.exception(
                    "event=repository_models_refused path=%s", repository.path
                )

    def _take_repository_look(
        self, repository: ModelRepository, look: RepositoryLook
    ) -> bool:
        problem = repository.problem
        changed = repository.take(look)
        if repository.problem and repository.problem != problem:
            log.warning("event=source_problem %s", repository.problem)
        return changed

    def _begin_repository_look(
        self, storage: StorageThreads, place: str, repository: ModelRepository
    ) -> None:
        def run() -> None:
            look = repository.examine(self._file_system)
            with self._changed:
                self._repository_look, self._repository_call = look, None
                self._repository_due_s = self._clock.now()
                self._changed.notify_all()

        with self._changed:  # until the call is noted, as for servables
            self._repository_call = self._submit(storage, place, run)

    def _mark_all_locked(self) -> None:
        now_s = self._clock.now()
        self._due_s = dict.fromkeys(self._servables, now_s)

    def _look(self, servable: ServableToMonitor) -> None:
        """Looks at one servable, or takes the look that another thread has taken."""
        record = self._record_of(servable)
        with self._changed:  # what is asked for from here on is another look
            self._due_s.pop(servable.name, None)
        # Watched before it is read: what changes in between raises an event.
        record.watched = self._watching and self._wants_watch(servable.base_path)
        if record.watched and self._watcher is not None:
            record.watched = self._watcher.ensure(local_path(servable.base_path))
        record.place = self._file_system.place(servable.base_path)
        if self._storage is not None and record.place:
            self._look_elsewhere(self._storage, record)
        else:
            self._follow(record, self._look_of(record)())

    def _look_elsewhere(self, storage: StorageThreads, record: _Record) -> None:
        """Follows the look that another thread has taken, or has it begin one."""
        with self._changed:
            if record.call is not None:
                record.is_outdated = True
                self._due_s.pop(record.servable.name, None)  # due when that has ended
                return
            look, record.look = record.look, None
            is_outdated, record.is_outdated = record.is_outdated, False
        is_current = look is not None and look.servable == record.servable
        if look is not None and is_current:
            self._follow(record, look)
        if is_outdated or not is_current:
            self._begin_look(storage, record)

    def _begin_look(self, storage: StorageThreads, record: _Record) -> None:
        take = self._look_of(record)

        def run() -> None:
            look = take()
            with self._changed:
                record.look, record.call = look, None
                if look.servable.name in self._servables:
                    self._due_s[look.servable.name] = self._clock.now()
                    self._changed.notify_all()

        with self._changed:  # until the call is noted: it may end at once
            self._due_s.pop(record.servable.name, None)
            record.call = self._submit(storage, record.place, run)

    def _submit(
        self, storage: StorageThreads, place: str, fn: Callable[[], None]
    ) -> StorageCall | None:
        try:
            return storage.submit(place, fn)
        except RuntimeError:  # closing
            log.debug("event=look_not_begun place=%s", place)
            return None

    def _note_late(self) -> None:
        """Says which base paths do not answer, and lets others go before them."""
        storage = self._storage
        if storage is None:
            return
        due_s = storage.relieve()
        for record in self._records.values():
            call = record.call
            if call is None or record.is_late:
                continue
            if not storage.is_late(record.place, call):
                continue
            record.is_late = True
            servable = record.servable
            problem = (
                f"base path {servable.base_path} of {servable.name} has not answered "
                f"for {call.patience_s:g} s; it is looked at again as soon as it does"
            )
            log.warning("event=source_problem servable=%s %s", servable.name, problem)
            record.problems = (problem,)
            if record.emitted is None:
                now_s = self._clock.now()
                self._say(record, AspiredVersions(servable.name, (), problem), now_s)
        repository, call = self._repository, self._repository_call
        if repository is not None and call is not None:
            place = self._file_system.place(repository.path)
            if storage.is_late(place, call) and not repository.problem:
                repository.problem = (
                    f"model repository {repository.path} has not answered for "
                    f"{call.patience_s:g} s; it is looked at again as soon as it does"
                )
                log.warning("event=source_problem %s", repository.problem)
        with self._changed:
            self._storage_due_s = float("inf") if due_s is None else due_s

    def _note_applied_locked(self, asked: int) -> None:
        """Notes which configuration's servables were all looked at, or do not answer."""
        looking = {
            name
            for name, record in self._records.items()
            if (record.call is not None or record.look is not None)
            and not record.is_late
        }
        if asked > self._awaited_asked:
            self._awaited, self._awaited_asked = looking, asked
        else:
            self._awaited &= looking
        if not self._awaited:
            self._applied = max(self._applied, self._awaited_asked)

    def _look_of(self, record: _Record) -> Callable[[], Look]:
        """Returns what looks; it keeps what it needs of the record, for any thread."""
        return functools.partial(
            take_look,
            self._file_system,
            record.servable,
            record.sightings,
            [data.id.version for data in record.emitted or ()],
            record.at_hand,
            self._options,
            self._clock,
        )

    def _record_of(self, servable: ServableToMonitor) -> _Record:
        record = self._records.get(servable.name)
        if record is None:
            record = self._records[servable.name] = _Record(servable)
        elif record.servable != servable:
            if record.servable.base_path != servable.base_path:
                record.sightings, record.at_hand = {}, None
            record.servable = servable
            record.is_new = True
        return record

    def _follow(self, record: _Record, look: Look) -> None:
        """Says what follows from a look, and sets the next one."""
        servable, found, problems = record.servable, look.found, look.problems
        record.is_late = False
        name, now_s = servable.name, self._clock.now()
        if found is None:
            # Nothing is known, so nothing changes: a storage outage unloads nothing.
            if record.emitted is None:
                self._say(record, AspiredVersions(name, (), problems[0]), now_s)
        else:
            decision = decide(
                servable,
                record.emitted,
                found,
                is_new=record.is_new,
                repeat=now_s - record.emitted_s >= _REPEAT_S,
                unload_when_empty=self._options.unload_when_empty,
            )
            if decision.aspired is not None:
                self._say(record, decision.aspired, now_s)
            problems = found.problems + decision.problems
            record.sightings = found.sightings
            record.at_hand = found.at_hand
            record.is_new = False
        for problem in problems:
            if problem not in record.problems:
                log.warning("event=source_problem servable=%s %s", name, problem)
        record.problems = problems
        settled_at_s = found.settled_at_s if found else None
        has_events = record.watched and not look.is_blind
        pause_s = max(_MIN_GAP_S, now_s - look.begun_s)
        self._schedule(servable, now_s, now_s + pause_s, settled_at_s, has_events)

    def _say(
        self, record: _Record, aspired: AspiredVersions[StoragePath], now_s: float
    ) -> None:
        if aspired.versions != record.emitted:
            log.info(
                "event=aspired servable=%s versions=%s reason=%r",
                aspired.name,
                list_versions([data.id.version for data in aspired.versions]),
                aspired.reason,
            )
        record.emitted = aspired.versions
        record.emitted_s = now_s
        self._emit(aspired)

    def _emit(self, aspired: AspiredVersions[StoragePath]) -> None:
        try:
            self._outlet.emit(aspired)
        except Exception:
            # A target's fault must not stop the other servables.
            log.exception("event=target_failed servable=%s", aspired.name)

    def _schedule(
        self,
        servable: ServableToMonitor,
        now_s: float,
        soonest_s: float,
        settled_at_s: float | None,
        has_events: bool,
    ) -> None:
        """Sets the next look; an event that came meanwhile keeps its earlier one."""
        options = self._options
        due_s = float("inf")
        if options.poll_wait_s > 0:
            due_s = now_s + (options.rescan_s if has_events else options.poll_wait_s)
        if settled_at_s is not None and options.poll_wait_s >= 0:
            due_s = min(due_s, max(settled_at_s, soonest_s))
        with self._changed:
            if self._servables.get(servable.name) != servable:
                return  # changed again while it was looked at: due already
            self._soonest_s[servable.name] = soonest_s
            asked_s = self._due_s.get(servable.name)
            if asked_s is not None:  # marked since the look began
                due_s = min(due_s, max(asked_s, soonest_s))
            if due_s == float("inf"):
                self._due_s.pop(servable.name, None)
            else:
                self._due_s[servable.name] = due_s

    def _watch(self, servables: Iterable[ServableToMonitor]) -> None:
        if self._watcher is None:
            return
        paths = {servable.base_path for servable in servables}
        if self._repository is not None:
            paths.add(self._repository.path)
        self._watcher.watch(
            sorted(local_path(path) for path in paths if self._wants_watch(path))
        )

    def _find_stale(
        self, servables: Mapping[str, ServableToMonitor], due: list[str]
    ) -> list[str]:
        """Returns the servables whose base path is another directory by now."""
        watcher = self._watcher
        if watcher is None:
            return []
        skipped = set(due)
        return [
            name
            for name, servable in servables.items()
            if name not in skipped
            and name in self._records
            and self._records[name].watched
            and not watcher.is_current(local_path(servable.base_path))
        ]

    def _mark_stale_repository(self, now_s: float) -> None:
        """Has the directory of models looked at if it is another one by now."""
        repository, watcher = self._repository, self._watcher
        if repository is None or watcher is None or not self._is_repository_watched:
            return
        if not watcher.is_current(local_path(repository.path)):
            with self._changed:
                self._repository_due_s = min(self._repository_due_s, now_s)

    def _wants_watch(self, path: str) -> bool:
        if self._storage is not None and self._file_system.place(path):
            return False  # whoever watches it asks it
        if is_remote(path):
            return False
        if self._options.watch is not None:
            return self._options.watch
        return self._file_system.gives_events(path)

    def _check_has_versions(self, servables: Iterable[ServableToMonitor]) -> None:
        if not self._options.require_versions:
            return
        for servable in servables:
            look = take_look(
                self._file_system, servable, {}, (), None, self._options, self._clock
            )
            found = look.found.versions if look.found is not None else ()
            if not found:
                raise NotFound(
                    f"Unable to find a numerical version path for servable "
                    f"{servable.name} at: {servable.base_path}"
                )


def _index(servables: Mapping[str, ServableToMonitor]) -> PathIndex:
    return PathIndex({name: local_path(s.base_path) for name, s in servables.items()})
