"""A directory of models that a source looks at again and again.

:class:`ModelRepository` knows which models lie there. This decides when to look and on
which thread, and reports a directory that does not answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from sources.distant_look import DistantLook
from sources.model_repository import ModelRepository, RepositoryLook
from sources.remote.storage import local_path
from sources.servable_to_monitor import ServableToMonitor
from sources.storage import FileSystem
from sources.storage_threads import StorageThreads
from sources.watched_paths import WatchedPaths

log = logging.getLogger(__name__)


class FollowedRepository:
    """The looks at a directory of models. Confined to its source's turn.

    ``path``, ``problem`` and ``covers`` may be used on any thread.

    Args:
        repository: The directory; owned by this object.
        file_system: Where it lies.
        watched: Tells whether events are given.
        storage: Threads for places that may not answer; None looks on the calling
            thread.
        on_taken: Called on any thread when a look by another thread has ended.

    """

    def __init__(
        self,
        repository: ModelRepository,
        file_system: FileSystem,
        watched: WatchedPaths,
        storage: StorageThreads | None,
        on_taken: Callable[[], None],
    ) -> None:
        self._repository = repository
        self._file_system = file_system
        self._watched = watched
        self._distant: DistantLook[RepositoryLook] | None = (
            None if storage is None else DistantLook(storage, on_taken)
        )
        self._is_watched = False  # by the last look

    @property
    def path(self) -> str:
        """The directory, or a URL."""
        return self._repository.path

    @property
    def problem(self) -> str:
        """The directory's problem; empty if none. Safe to read on any thread."""
        return self._repository.problem

    def covers(self, path: str) -> bool:
        """Whether a change of ``path`` may be that of a model, or make a new one."""
        root = local_path(self._repository.path).rstrip("/")
        below = path.removeprefix(root + "/")
        return path == root or (below != path and below.count("/") <= 1)

    def look(self) -> bool:
        """Looks, or takes over another thread's look, or has another thread begin one.

        Blocks while files are listed.

        Returns:
            Whether ``models`` changed.

        """
        self._is_watched = self._watched.ensure(self._repository.path)
        place = self._file_system.place(self._repository.path)
        if self._distant is None or not place:
            return self._take(self._repository.examine(self._file_system))
        if self._distant.ask():
            return False
        look, is_outdated = self._distant.fetch()
        changed = look is not None and self._take(look)
        if look is None or is_outdated:
            self._distant.begin(
                place, lambda: self._repository.examine(self._file_system)
            )
        return changed

    @property
    def has_events(self) -> bool:
        """Whether events tell when something has changed."""
        return self._is_watched and not self._repository.is_blind

    @property
    def models(self) -> Sequence[ServableToMonitor]:
        """The models that were found last."""
        return self._repository.models or ()

    @property
    def is_open(self) -> bool:
        """Whether a look by another thread is not over. Its end asks for the next."""
        return self._distant is not None and self._distant.is_open

    def is_stale(self) -> bool:
        """Whether it was watched and has been replaced by another directory."""
        return self._is_watched and self._watched.is_stale(self._repository.path)

    def give_up_waiting(self) -> None:
        """Reports, once, that the directory does not answer, if so."""
        late_s = None if self._distant is None else self._distant.late_s()
        if late_s is None or self._repository.problem:
            return
        self._repository.problem = (
            f"model repository {self._repository.path} has not answered for "
            f"{late_s:g} s; it is looked at again as soon as it does"
        )
        log.warning("event=source_problem problem=%s", self._repository.problem)

    def _take(self, look: RepositoryLook) -> bool:
        problem = self._repository.problem
        changed = self._repository.take(look)
        if self._repository.problem and self._repository.problem != problem:
            log.warning("event=source_problem problem=%s", self._repository.problem)
        return changed
