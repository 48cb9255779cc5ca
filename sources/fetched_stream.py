"""One servable's remote versions: those wanted, those copied, and those handed on.

It decides what to copy, what to tell the target and which copies to keep; its adapter
does the copying and telling. A copy is kept, however much room others want, in three
cases: while its version is aspired; while the version goes on serving although it is
not aspired any more (its successors failed, or are on their way); and after that as
long as it is the version to go back to.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from sources.remote_storage import is_remote, local_path
from sources.storage_path import StoragePath
from tfs.core.errors import ResourceExhausted, ServingError, Unavailable
from tfs.core.servable_data import AspiredVersions, ServableData
from tfs.core.servable_id import ServableId

# If telling the target about a servable takes longer than this, a rest follows that
# lasts _REST times as long.
_LONG_S: Final = 0.005
_REST: Final = 3

# Pauses between tries of a copy that failed. Asking a store again that does not answer
# costs little. But a version of gigabytes that is damaged in the store would be copied
# over and over.
_FIRST_PAUSE_S: Final = 15.0
_FIRST_PAUSE_OF_STORE_S: Final = 1.0
_LAST_PAUSE_S: Final = 900.0
# Tries to replace a damaged copy, because a failing disk may damage each.
_MAX_REMADE: Final = 2


class Service(enum.Enum):
    """What has become of a version that was handed on."""

    GOES_ON = "goes on"
    """It loads, serves or unloads, or waits to, so its files may be read."""
    SERVED = "served"
    """It was unloaded after it had served, so a rollback may return to it."""
    NONE = "none"
    """It failed, or was never tried."""


@dataclass(frozen=True, slots=True)
class LocalCopy:
    """A version's local copy, in use. Immutable."""

    id: ServableId
    path: StoragePath


@dataclass(slots=True)
class _Failures:
    """How often a copy failed, and when another try may come, by the clock."""

    num: int = 0
    rests_until_s: float = 0.0

    def note(self, error: ServingError, now_s: float) -> None:
        """Counts another failure."""
        is_store = isinstance(error, Unavailable)
        first_s = _FIRST_PAUSE_OF_STORE_S if is_store else _FIRST_PAUSE_S
        self.rests_until_s = now_s + min(first_s * 2.0**self.num, _LAST_PAUSE_S)
        self.num += 1


class FetchedStream:
    """What the adapter knows of one servable. Not thread-safe; never blocks.

    Versions are identified by their remote paths, which include fingerprints. So if the
    files of a version change, it counts as another version.

    Args:
        wanted: The versions that the source aspires.
        release: Takes a copy that need not be kept any more; quick.
        service: Returns what has become of a version; quick.

    """

    def __init__(
        self,
        wanted: AspiredVersions[StoragePath],
        release: Callable[[StoragePath], None],
        service: Callable[[ServableId], Service],
    ) -> None:
        self._wanted = wanted
        self._release = release
        self._service = service
        self._outcomes: dict[StoragePath, LocalCopy | ServingError] = {}
        # Versions on their way here, and since when, by the clock.
        self._pending: dict[StoragePath, float] = {}
        self._failures: dict[StoragePath, _Failures] = {}
        self._num_remade: dict[StoragePath, int] = {}
        self._told: tuple[ServableData[StoragePath], ...] = ()
        # Copies of versions that are not aspired any more, oldest first.
        self._retired: dict[StoragePath, LocalCopy] = {}
        # Whether a copy has ended of which the target was not told.
        self._is_stale = False
        # End of the rest after telling the target; infinite while it is told.
        self._rests_until_s = 0.0

    @property
    def is_wanted(self) -> bool:
        """Whether any version is."""
        return bool(self._wanted.versions)

    @property
    def is_moving(self) -> bool:
        """Whether versions are on their way here, or to the target."""
        return bool(self._pending) or self._is_stale or self._rests_until_s == inf

    @property
    def on_their_way(self) -> list[tuple[ServableId, StoragePath, float]]:
        """The versions that are wanted and not here yet, and since when, by the clock."""
        return [
            (data.id, path, self._pending[path])
            for data in self._wanted.versions
            if (path := data.payload) in self._pending and path is not None
        ]

    # -- copying -------------------------------------------------------------------

    def want(
        self, wanted: AspiredVersions[StoragePath], now_s: float
    ) -> list[tuple[ServableId, StoragePath]]:
        """Takes in the versions that the source aspires; returns those to copy now."""
        self._wanted = wanted
        missing = []
        for data in wanted.versions:
            path = data.payload
            if path is None or not is_remote(path.path):
                continue
            if path in self._retired:
                self._outcomes[path] = self._retired.pop(path)
            elif self._begin(path, now_s):
                missing.append((data.id, path))
        kept = {data.payload for data in wanted.versions}
        for notes in (self._failures, self._num_remade):
            for path in [each for each in notes if each not in kept]:
                del notes[path]
        if missing:
            self._make_room()
        return missing

    def forget_failures(self) -> None:
        """Lets copies that failed be tried again as soon as the source repeats itself."""
        self._failures.clear()
        self._num_remade.clear()

    def try_again(self, path: StoragePath, now_s: float) -> bool:
        """Returns whether to copy a failed version again; it then counts as under way.

        It is not copied if it is no longer wanted, or if its copy was asked for
        already.
        """
        is_wanted = any(data.payload == path for data in self._wanted.versions)
        return is_wanted and self._begin(path, now_s)

    def copy_to_check(
        self, servable_id: ServableId
    ) -> tuple[StoragePath, LocalCopy] | None:
        """Returns the copy that a version was to be loaded from, with its remote path.

        Returns None if there is no wanted copy, or if it was copied again often enough.
        """
        for data in self._wanted.versions:
            path = data.payload
            if data.id != servable_id or path is None:
                continue
            copy = self._outcomes.get(path)
            if isinstance(copy, LocalCopy) and not self._is_remade_enough(path):
                return path, copy
        return None

    def _is_remade_enough(self, path: StoragePath) -> bool:
        return self._num_remade.get(path, 0) >= _MAX_REMADE

    def give_up_damaged(self, path: StoragePath, copy: LocalCopy, now_s: float) -> bool:
        """Notes that a damaged copy has to be made again; returns False if not wanted.

        Until the new copy is there, the target keeps the versions that it was told of.
        """
        is_wanted = any(data.payload == path for data in self._wanted.versions)
        if self._outcomes.get(path) is not copy or not is_wanted:
            return False
        self._release(copy.path)
        del self._outcomes[path]
        self._num_remade[path] = self._num_remade.get(path, 0) + 1
        self._pending[path] = now_s
        return True

    def _begin(self, path: StoragePath, now_s: float) -> bool:
        """Notes that a version is under way, unless it is so, is here or pauses."""
        if path in self._pending or isinstance(self._outcomes.get(path), LocalCopy):
            return False
        failures = self._failures.get(path)
        if failures is not None and now_s < failures.rests_until_s:
            return False
        self._outcomes.pop(path, None)
        self._pending[path] = now_s
        return True

    def take(
        self, path: StoragePath, outcome: LocalCopy | ServingError, now_s: float
    ) -> float | None:
        """Takes the outcome of copying; releases the copy if nobody waits for it any more.

        Returns:
            When, by the clock, to try again; None if it is not tried again.

        """
        if path not in self._pending:
            if isinstance(outcome, LocalCopy):
                self._release(outcome.path)
            return None
        del self._pending[path]
        self._outcomes[path] = outcome
        self._is_stale = True
        if isinstance(outcome, LocalCopy):
            self._failures.pop(path, None)
            return None
        if isinstance(outcome, ResourceExhausted):  # nothing was copied
            return None
        failures = self._failures.setdefault(path, _Failures())
        failures.note(outcome, now_s)
        return failures.rests_until_s

    # -- telling -------------------------------------------------------------------

    def is_due(self, now_s: float) -> bool:
        """Whether to tell the target of copies that have ended.

        Telling the target of thousands of versions takes a while. A copy that ends in
        that time, or within a few times as long afterwards, waits for the next one to
        end. The last copy waits for nobody.
        """
        return self._is_stale and (not self._pending or now_s >= self._rests_until_s)

    def begin_telling(self) -> AspiredVersions[StoragePath]:
        """Returns what can be loaded now, and releases copies that need not be kept."""
        self._is_stale = False
        self._rests_until_s = inf
        wanted = {data.payload for data in self._wanted.versions}
        self._pending = {p: s for p, s in self._pending.items() if p in wanted}
        told = [local for data in self._wanted.versions if (local := self._local(data))]
        if self._pending:
            ids = {data.id for data in told}
            told += [data for data in self._told if data.id not in ids]
        before, self._told = self._told, tuple(told)
        if {data.payload for data in told} - {None, *(d.payload for d in before)}:
            self._retire(wanted)
        if not self._wanted.versions:
            for outcome in (*self._retired.values(), *self._outcomes.values()):
                if isinstance(outcome, LocalCopy):
                    self._release(outcome.path)
        return replace(self._wanted, versions=self._told)

    def end_telling(self, begun_s: float, now_s: float) -> None:
        """Notes how long telling the target took."""
        took_s = now_s - begun_s
        self._rests_until_s = now_s + (_REST * took_s if took_s > _LONG_S else 0.0)

    def _local(
        self, data: ServableData[StoragePath]
    ) -> ServableData[StoragePath] | None:
        """Returns a version as the target is told of it; None if it is not copied."""
        path = data.payload
        if path is None:
            return data
        if not is_remote(path.path):
            return data.with_payload(replace(path, path=local_path(path.path)))
        if path in self._pending:
            return None
        outcome = self._outcomes[path]
        if isinstance(outcome, LocalCopy):
            return data.with_payload(outcome.path)
        return data.with_error(outcome)

    # -- keeping -------------------------------------------------------------------

    def _make_room(self) -> None:
        """Releases copies that need not be kept, before something new is copied."""
        wanted = {data.payload for data in self._wanted.versions}
        for path, outcome in list(self._outcomes.items()):
            if path in wanted or not isinstance(outcome, LocalCopy):
                continue
            if self._service(outcome.id) is Service.NONE:
                self._release(outcome.path)
                del self._outcomes[path]
        self._forget_retired()

    def _retire(self, wanted: set[StoragePath | None]) -> None:
        """Notes what is not aspired any more, now that something new is handed on.

        The manager serves them until the new version is loaded. If copying has failed,
        nothing is handed on, so nothing is taken away either.
        """
        self._forget_retired()
        told = {data.payload for data in self._told}
        for path in [p for p in self._outcomes if p not in wanted]:
            outcome = self._outcomes[path]
            if isinstance(outcome, LocalCopy):
                if outcome.path in told:
                    continue
                self._retired[path] = outcome
            del self._outcomes[path]

    def _forget_retired(self) -> None:
        """Releases copies of versions that neither serve on nor served last."""
        services = {p: self._service(copy.id) for p, copy in self._retired.items()}
        served = [p for p, service in services.items() if service is Service.SERVED]
        for path, service in services.items():
            if service is not Service.GOES_ON and path not in served[-1:]:
                self._release(self._retired.pop(path).path)
