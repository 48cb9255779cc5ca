"""Aspires the versions it finds in directories.

The source looks at a base path when the kernel reports a change below it, when a
directory may have settled, and from time to time in any case, because events get lost
and some file systems give none.

This module has the source's thread and its rounds of looks. The
:class:`~sources.agenda.Agenda`, which any thread may call, knows what to look at next,
and when. The look itself is :func:`sources.scan.scan`. A servable's
:class:`~sources.servable_record.ServableRecord` decides what to emit afterwards.

Different from TensorFlow Serving on purpose (docs/divergences.md): a base path that
cannot be read affects only its own servable, and an empty listing does not unload
the last version. (sources/storage_path/file_system_storage_path_source.h.)
"""

from __future__ import annotations

import functools
import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from sources.agenda import Agenda
from sources.directory_watcher import DirectoryWatcher
from sources.distant_look import DistantLook
from sources.file_system_options import FileSystemSourceOptions, by_name
from sources.followed_repository import FollowedRepository
from sources.look import Look, take_look
from sources.model_repository import ModelRepository
from sources.remote.storage import AnyFileSystem, is_remote
from sources.servable_record import ServableRecord
from sources.servable_to_monitor import ServableToMonitor
from sources.storage import FileSystem
from sources.storage_path import StoragePath
from sources.storage_threads import PATIENCE_S, StorageThreads
from sources.watched_paths import WatchedPaths
from tfs.core.clock import Clock, MonotonicClock
from tfs.core.errors import NotFound
from tfs.core.pacing import yield_to_requests
from tfs.core.servable_data import AspiredVersions
from tfs.core.servable_id import ServableId
from tfs.core.source import AspiredVersionsCallback, Outlet

__all__ = ["FileSystemSource", "FileSystemSourceOptions", "OnModels"]

log = logging.getLogger(__name__)

OnModels = Callable[[Sequence[ServableToMonitor]], object]

# A copy in progress raises events by the hundred. So there is at least this pause
# between looks, and one as long as the last look took.
_MIN_GAP_S: Final = 0.05
_LONGEST_CLOSE_S: Final = 5.0
# The first look at a store imports its driver, which takes seconds on a busy machine.
_STORE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Findings:
    """The findings of the last round; servables without one are absent. Immutable."""

    problems: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    at_hand: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    outlooks: Mapping[str, bool | None] = field(default_factory=dict)


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
        has_failed: Callable[[ServableId], bool] = lambda _: False,
    ) -> None:
        """Stores its parts; nothing is read yet.

        Args:
            options: How it looks.
            file_system: The file system that it reads; None is the local one.
            clock: The clock of all its times.
            watcher: The source of events; None is watchdog, when started.
            on_looked: Called after each round of looks, with ``problems`` up to
                date, on the scanning thread; quick.
            storage: Threads that look at places which may not answer (a store, a
                network mount), so that these hold up no other base path; None uses the
                scanning thread. Owned by the caller.
            has_failed: Whether a version could not be loaded, so that any change of its
                files is worth another try; on any thread, quick.

        """
        self._options = options
        self._file_system = file_system or AnyFileSystem()
        self._clock = clock or MonotonicClock()
        self._on_looked = on_looked
        self._storage = storage
        self._has_failed = has_failed
        self._outlet: Outlet[StoragePath] = Outlet()
        self._agenda = Agenda(by_name(options.servables), self._clock)
        self._on_models: OnModels = self.update_config
        self._repository: FollowedRepository | None = None
        self._findings = _Findings()  # replaced as a whole
        self._thread: threading.Thread | None = None
        # Held during a whole scan, which orders the calls for each name. Guards the
        # next two fields and the repository's looks. Rank: before the agenda's lock and
        # any lock of a target. The event thread never takes it.
        self._turn = threading.Lock()
        self._records: dict[str, ServableRecord] = {}
        self._watched = WatchedPaths(
            self._file_system, watcher, options.watch, asks_distant=storage is None
        )

    # -- wiring ----------------------------------------------------------------

    def set_aspired_versions_callback(
        self, callback: AspiredVersionsCallback[StoragePath]
    ) -> None:
        """Connects the target; scanning starts with ``start`` or ``poll_once``."""
        self._outlet.connect(callback)
        self._agenda.open()

    def start(self) -> None:
        """Starts to watch and to scan, on a thread of the source's own.

        Raises:
            NotFound: ``require_versions`` is set and a servable has none; nothing
                was started.

        """
        self._check_has_versions(self._agenda.servables.values())
        if self._options.poll_wait_s < 0 or not self._agenda.claim():
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
            self._watched.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- configuration ---------------------------------------------------------

    def update_config(self, servables: Iterable[ServableToMonitor]) -> None:
        """Monitors exactly ``servables`` from now on; never waits for a scan.

        All of them are looked at immediately, and for those left out an empty set is
        emitted. The source's thread does that if it runs; otherwise it is done before
        this returns.

        Raises:
            InvalidArgument: A name occurs twice; nothing changed.
            NotFound: ``require_versions`` is set and one has none; nothing changed.

        """
        wanted = by_name(servables)
        self._check_has_versions(wanted.values())
        self._agenda.configure(wanted)
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
        followed = self._repository = FollowedRepository(
            repository,
            self._file_system,
            self._watched,
            self._storage,
            self._agenda.insist_on_repository,
        )
        if on_models is not None:
            self._on_models = on_models
        self._agenda.add_repository(followed.covers)

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
        return self._findings.problems

    def at_hand(self, name: str) -> Sequence[int]:
        """Returns the versions that the last look at a base path showed, lowest first.

        They may or may not be ready. There are none before the first look.
        """
        return self._findings.at_hand.get(name, ())

    def outlook(self, name: str) -> bool | None:
        """Returns whether the last look at a servable found a version to serve.

        None if there may be one soon, because something is settling. If it is False,
        ``problems`` says why, and whatever is still aspired was found earlier.
        """
        return self._findings.outlooks.get(name, True)

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
        self._agenda.insist_on_all()

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
        """Notes that something at, above or below ``path`` changed. Thread-safe."""
        self._agenda.mark_changed(path)

    def step(self) -> float | None:
        """Looks at what is due, on this thread; blocks while files are listed.

        Returns:
            When (by the clock) the next look is due; None if only an event or a
            new configuration brings one, or nothing is connected yet.

        """
        if not self._outlet.is_connected:
            return None
        yield_to_requests()
        self._look_at_repository()
        with self._turn:
            now = self._agenda.take_round(self._options.poll_wait_s)
            if now.is_pulse and not self._watched.is_started:
                self._watched.start(self.mark_changed)
                if self._watched.is_started:
                    self._watch(now.servables.values())
            for name in now.removed:
                if self._records.pop(name, None) is not None:
                    reason = f"{name} is not configured any more"
                    self._emit(AspiredVersions(name, (), reason))
            if now.is_changed:
                self._watch(now.servables.values())
            due = [*now.due]
            if now.is_pulse:
                due += self._find_stale(now.servables, due)
                if self._repository is not None and self._repository.is_stale():
                    self._agenda.insist_on_repository()
            for name in now.repeated & self._records.keys():
                self._records[name].must_repeat = True
            for name in due:
                self._look(now.servables[name])
            self._give_up_waiting()
            self._publish(now.number)
        self._on_looked()
        return self._agenda.next_due_s()

    def _run(self) -> None:
        if self._options.watch is not False and self._options.poll_wait_s > 0:
            self._agenda.begin_pulse()
        while self._agenda.wait_due():
            try:
                self.step()
            except Exception:
                log.exception("event=source_step_failed")

    def _look_at_repository(self) -> None:
        """Lists the directory of models if that is due; passes on what it found."""
        repository = self._repository
        if repository is None or not self._agenda.begin_repository():
            return
        now_s = self._clock.now()
        with self._turn:
            changed = repository.look()
            if not repository.is_open:  # otherwise its end asks for the next look
                due_s = self._next_poll_s(now_s, has_events=repository.has_events)
                self._agenda.end_repository(now_s + _MIN_GAP_S, due_s)
        if changed:
            try:
                self._on_models(repository.models)
            except Exception:
                log.exception(
                    "event=repository_models_refused path=%s", repository.path
                )

    def _look(self, servable: ServableToMonitor) -> None:
        """Looks at one servable, or takes over a look from another thread."""
        record = self._record_of(servable)
        self._agenda.begin(servable.name)
        try:
            self._look_at(servable, record)
        except Exception as error:  # a fault of one base path must not stop the others
            log.exception("event=look_failed servable=%s", servable.name)
            problem = f"cannot look at {servable.base_path} of {servable.name}: {error}"
            self._take(record, Look(servable, self._clock.now(), None, (problem,)))

    def _look_at(self, servable: ServableToMonitor, record: ServableRecord) -> None:
        # The base path is watched before it is read, so that a change in between raises
        # an event.
        record.is_watched = self._watched.ensure(servable.base_path)
        place = self._file_system.place(servable.base_path)
        if self._storage is not None and place:
            if record.distant is None:
                on_taken = functools.partial(self._agenda.insist_on, servable.name)
                record.distant = DistantLook(self._storage, on_taken)
            self._look_elsewhere(record, record.distant, place)
        else:
            look = self._next_look(record)
            self._take(record, look())

    def _next_look(self, record: ServableRecord) -> Callable[[], Look]:
        return record.next_look(
            self._file_system, self._options, self._clock, self._has_failed
        )

    def _look_elsewhere(
        self, record: ServableRecord, distant: DistantLook[Look], place: str
    ) -> None:
        """Takes over a look that another thread has finished, or has it begin one."""
        if distant.ask():
            return  # it is due when that look has ended
        look, is_outdated = distant.fetch()
        is_current = look is not None and look.servable == record.servable
        if look is not None and is_current:
            self._take(record, look)
        if is_outdated or not is_current:
            self._agenda.begin(record.servable.name)
            next_look = self._next_look(record)
            is_store = is_remote(record.servable.base_path)
            distant.begin(place, next_look, _STORE_S if is_store else PATIENCE_S)

    def _give_up_waiting(self) -> None:
        """Reports base paths that do not answer, and no longer waits for them."""
        if self._storage is None:
            return
        due_s = self._storage.relieve()
        for record in self._records.values():
            aspired = record.give_up_waiting(self._clock.now())
            if aspired is not None:
                self._emit(aspired)
        if self._repository is not None:
            self._repository.give_up_waiting()
        self._agenda.set_storage_due(due_s)

    def _publish(self, number: int) -> None:
        """Publishes the findings, and then that the configuration was looked at."""
        records = self._records
        self._findings = _Findings(
            {n: r.problems for n, r in records.items() if r.problems},
            {n: r.at_hand or () for n, r in records.items()},
            {n: r.outlook for n, r in records.items() if not r.outlook},
        )
        looking = {n for n, record in records.items() if record.is_awaited}
        self._agenda.end_round(number, looking)

    def _record_of(self, servable: ServableToMonitor) -> ServableRecord:
        record = self._records.get(servable.name)
        if record is None:
            record = self._records[servable.name] = ServableRecord(servable)
        record.configure(servable)
        return record

    def _take(self, record: ServableRecord, look: Look) -> None:
        """Emits the result of a look, and sets the time of the next one."""
        options, now_s = self._options, self._clock.now()
        aspired = record.take(look, now_s, unload_when_empty=options.unload_when_empty)
        if aspired is not None:
            self._emit(aspired)
        soonest_s = now_s + max(_MIN_GAP_S, now_s - look.begun_s)
        has_events = record.is_watched and not look.is_blind
        due_s = self._next_poll_s(now_s, has_events=has_events)
        settled_at_s = look.found.settled_at_s if look.found else None
        if settled_at_s is not None and options.poll_wait_s >= 0:
            due_s = min(due_s, max(settled_at_s, soonest_s))
        self._agenda.end(record.servable, soonest_s, due_s)

    def _next_poll_s(self, now_s: float, *, has_events: bool) -> float:
        """Returns when to look again if nothing asks for it earlier; infinite for never."""
        options = self._options
        if options.poll_wait_s <= 0:
            return math.inf
        return now_s + (options.rescan_s if has_events else options.poll_wait_s)

    def _emit(self, aspired: AspiredVersions[StoragePath]) -> None:
        try:
            self._outlet.emit(aspired)
        except Exception:
            # A fault of the target must not stop the other servables.
            log.exception("event=target_failed servable=%s", aspired.name)

    def _watch(self, servables: Iterable[ServableToMonitor]) -> None:
        paths = [servable.base_path for servable in servables]
        if self._repository is not None:
            paths.append(self._repository.path)
        self._watched.set(paths)

    def _find_stale(
        self, servables: Mapping[str, ServableToMonitor], due: list[str]
    ) -> list[str]:
        """Returns the servables whose base path has become another directory."""
        skipped = set(due)
        return [
            name
            for name, servable in servables.items()
            if name not in skipped
            and name in self._records
            and self._records[name].is_watched
            and self._watched.is_stale(servable.base_path)
        ]

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
