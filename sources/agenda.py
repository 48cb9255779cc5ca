"""Knows what a source has to list next, and when. Any thread may call it.

New configurations, events and the ends of listings come from any thread, at any time, and
change what is listed next. The scanning thread takes one round after the other and reports
how each listing ended. Nothing is read, called or emitted here.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from sources.listing import Listing
from sources.model_repository import RepositoryLook
from sources.servable_to_monitor import ServableToMonitor
from sources.storage.file_system import local_path
from tfs.core.clock import Clock
from tfs.core.executor import Call

REPOSITORY: Final = ""
"""The key of the directory of models; others are names of servables."""


@dataclass(slots=True, eq=False)
class Look:
    """The listings of one base path, one at a time. Times are the clock's.

    Attributes:
        key: The servable's name, or REPOSITORY.
        due_s: When the next one is due; infinite if nobody asks for one.
        soonest_s: Until when events have to wait.
        is_insisted: Whether the next one waits for no pause.
        is_open: Whether one is under way; what is asked for meanwhile is another one.
        must_repeat: Whether the versions are to be emitted again even if nothing changed.
            Cleared without the agenda's lock just before they are emitted: whoever asked
            until then is served.
        call: That listing, if another thread makes it. Written on the scanning thread.
        found: What that thread has found, until it is taken.

    """

    key: str
    due_s: float = math.inf
    soonest_s: float = -math.inf
    is_insisted: bool = False
    is_open: bool = False
    must_repeat: bool = False
    call: Call | None = None
    found: Listing | RepositoryLook | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """The listings to make now. Immutable.

    Attributes:
        number: The number of the last configuration that it takes into account.
        servables: All servables that are monitored, by name.
        due: What to list; the listings have begun.

    """

    number: int
    servables: Mapping[str, ServableToMonitor]
    due: Sequence[Look]


class Agenda:
    """Which base path is listed when. Thread-safe; only ``wait...`` blocks.

    Nothing is due before ``open``; everything is due then.
    """

    def __init__(
        self, servables: Mapping[str, ServableToMonitor], clock: Clock
    ) -> None:
        self._clock = clock
        # Guards every field below, and the looks except for what they say; leaf: nothing
        # is called under it.
        self._changed = threading.Condition()
        self._servables: Mapping[str, ServableToMonitor] = {}
        self._by_directory: Mapping[str, tuple[str, ...]] = {}
        self._looks: dict[str, Look] = {}
        self._repository: str | None = None
        # Listings that are not over, of the configuration that was taken in last.
        self._awaited: AbstractSet[str] = frozenset()
        self._num_asked = 0  # configurations accepted
        self._num_begun = 0  # configurations that a round was taken for
        self._num_taken = 0  # the number of the configuration taken in last
        self._num_applied = 0  # configurations whose servables were all listed
        self._is_open = False
        self.is_closed = False
        self.configure(servables)
        self._num_applied = self._num_asked

    # -- what is listed ------------------------------------------------------------

    @property
    def servables(self) -> Mapping[str, ServableToMonitor]:
        """The monitored servables, by name. Replaced as a whole, never changed."""
        return self._servables

    def configure(
        self, wanted: Mapping[str, ServableToMonitor], *, looks_at_all: bool = True
    ) -> None:
        """Monitors exactly these servables from now on, and makes them due.

        Args:
            wanted: The servables, by name.
            looks_at_all: Whether that includes unchanged ones, because an operator who
                reloads wants everything up to date, above all where nothing is polled.

        """
        by_directory = _by_directory(wanted)
        with self._changed:
            before, self._servables = self._servables, wanted
            self._by_directory = by_directory
            keys = (*(self._looks.keys() & {REPOSITORY}), *wanted)
            self._looks = {key: self._looks.get(key) or Look(key) for key in keys}
            self._num_asked += 1
            due: Iterable[str] = keys
            if not looks_at_all:
                due = [n for n, each in wanted.items() if before.get(n) != each]
            # Under the same lock, or a round could count for this configuration and list
            # none of it.
            self.insist(due)

    def add_repository(self, path: str) -> None:
        """Lists a directory of models as well, which is due now."""
        with self._changed:
            self._repository = directory_of(path)
            self._looks[REPOSITORY] = Look(REPOSITORY)
        self.insist([REPOSITORY])

    def wait_applied(self, deadline_s: float | None = None) -> bool:
        """Blocks until all configurations given so far have been listed and emitted.

        Returns whether this was so by the (monotonic) deadline.
        """
        with self._changed:
            wanted = self._num_asked
            while self._num_applied < wanted and not self.is_closed:
                now_s = self._clock.now()
                if deadline_s is not None and now_s >= deadline_s:
                    return False
                self._clock.wait(self._changed, deadline_s)
            return self._num_applied >= wanted

    # -- who asks for listings ------------------------------------------------------

    def mark_changed(self, directory: str) -> None:
        """Notes that something changed in a base path, or in the directory of models."""
        now_s = self._clock.now()
        with self._changed:
            keys = list(self._by_directory.get(directory, ()))
            if directory == self._repository:
                keys.append(REPOSITORY)
            for look in map(self._looks.__getitem__, keys):
                wanted_s = max(now_s, look.soonest_s)
                if wanted_s < look.due_s:
                    look.due_s = wanted_s
                    self._changed.notify_all()

    def insist(self, keys: Iterable[str] | None = None) -> None:
        """Makes some listings due, or all of them, whether or not a pause is over."""
        now_s = self._clock.now()
        with self._changed:
            for key in self._looks if keys is None else keys:
                if key in self._looks:
                    self._looks[key].due_s = now_s
                    self._looks[key].is_insisted = True
            self._changed.notify_all()

    def repeat(self, name: str) -> None:
        """Makes a servable due, and has its versions emitted again.

        ``wait_applied`` waits for this as for a configuration.
        """
        with self._changed:
            if name not in self._servables:
                return
            self._looks[name].must_repeat = True
            self._num_asked += 1
            self.insist([name])

    # -- who lists ------------------------------------------------------------------

    def open(self) -> None:
        """Lets listings be due, because the target is connected."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def close(self) -> None:
        """Ends all waiting; idempotent."""
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()

    def arrive(self, look: Look, found: Listing | RepositoryLook) -> None:
        """Takes what another thread has listed; makes the next round due."""
        with self._changed:
            look.found = found
            self._changed.notify_all()

    def take_arrived(self) -> list[tuple[Look, Listing | RepositoryLook]]:
        """Returns what other threads have listed since this was last called."""
        arrived = []
        with self._changed:
            for look in self._looks.values():
                if look.found is not None:
                    arrived.append((look, look.found))
                    look.found = None
        return arrived

    def wait_due(self, latest_s: float = math.inf) -> bool:
        """Blocks until something is due, or it is late; returns False once closed."""
        with self._changed:
            while not self.is_closed:
                due_s = min(
                    self._due_s_locked() if self._is_open else math.inf, latest_s
                )
                if due_s <= self._clock.now():
                    break
                self._clock.wait(self._changed, None if due_s == math.inf else due_s)
            return not self.is_closed

    def next_due_s(self, latest_s: float = math.inf) -> float | None:
        """Returns when, by the clock, something will be due; None if nothing will."""
        with self._changed:
            due_s = min(self._due_s_locked(), latest_s)
        return None if due_s == math.inf else max(due_s, self._clock.now())

    def begin(self, key: str) -> Look | None:
        """Returns the listing of ``key`` if it is due; it has begun then."""
        with self._changed:
            return self._begin_locked(self._looks.get(key), self._clock.now())

    def take_round(self) -> Round:
        """Returns the listings of servables to make now."""
        with self._changed:
            now_s = self._clock.now()
            looks = (each for key, each in self._looks.items() if key != REPOSITORY)
            due = [each for each in looks if self._begin_locked(each, now_s)]
            self._num_begun = self._num_asked
            return Round(self._num_asked, self._servables, due)

    def end_round(self, number: int, looking: AbstractSet[str]) -> None:
        """Notes which listings are not over yet, of configurations up to a number.

        Args:
            number: That of the round.
            looking: The servables that are being listed by other threads.

        """
        with self._changed:
            if number > self._num_taken:
                self._awaited, self._num_taken = looking, number
            else:
                self._awaited &= looking
            if not self._awaited:
                self._num_applied = max(self._num_applied, self._num_taken)
            self._changed.notify_all()

    def end(self, look: Look, soonest_s: float, due_s: float) -> None:
        """Ends a listing and sets the next; one that was asked for may come earlier.

        Args:
            look: Which.
            soonest_s: The end of the pause.
            due_s: When the next one is due if nobody asks; infinite for never.

        """
        with self._changed:
            look.is_open, look.call = False, None
            look.soonest_s = soonest_s
            asked_s = look.due_s
            if not look.is_insisted and asked_s < math.inf:
                asked_s = max(asked_s, soonest_s)
            look.due_s = min(due_s, asked_s)

    def _begin_locked(self, look: Look | None, now_s: float) -> Look | None:
        if look is None or look.is_open or look.due_s > now_s:
            return None
        look.is_open, look.is_insisted, look.due_s = True, False, math.inf
        return look

    def _due_s_locked(self) -> float:
        if self._num_begun < self._num_asked:
            return -math.inf
        looks = self._looks.values()
        if any(each.found is not None for each in looks):
            return -math.inf
        return min((each.due_s for each in looks if not each.is_open), default=math.inf)


def directory_of(path: str) -> str:
    """Returns the local directory that a base path names, as events name it."""
    return local_path(path).rstrip("/") or "/"


def _by_directory(
    servables: Mapping[str, ServableToMonitor],
) -> Mapping[str, tuple[str, ...]]:
    """Returns names by base path; several may share one."""
    # Tuples of one for each of many thousands: the collector of cycles visits lists.
    found: dict[str, tuple[str, ...]] = {}
    for name, servable in servables.items():
        directory = directory_of(servable.base_path)
        found[directory] = (*found.get(directory, ()), name)
    return found
