"""Knows what a source has to look at next, and when. Any thread may call it.

New configurations, events and the ends of looks come from any thread, at any time, and
change what is looked at next. The scanning thread takes one round after the other and
reports how each look ended. Nothing is read, called or emitted here.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from sources.remote.storage import local_path
from sources.servable_to_monitor import ServableToMonitor
from tfs.core.clock import Clock


@dataclass(slots=True)
class LookTime:
    """The time of the next look at one thing. Guarded by its owner's lock.

    Attributes:
        due_s: When, by the clock; infinite if nobody asks for a look.
        soonest_s: Until when events have to wait.

    """

    due_s: float = math.inf
    soonest_s: float = -math.inf

    def ask(self, now_s: float) -> bool:
        """Asks for a look as soon as the pause allows; returns if that is sooner."""
        wanted_s = max(now_s, self.soonest_s)
        if wanted_s >= self.due_s:
            return False
        self.due_s = wanted_s
        return True

    def insist(self, now_s: float) -> None:
        """Asks for a look now, whether or not the pause is over."""
        self.due_s = now_s

    def begin(self) -> None:
        """Notes that a look begins; later requests ask for another one."""
        self.due_s = math.inf

    def end(self, soonest_s: float, due_s: float) -> None:
        """Sets the next look; one that was asked for meanwhile may come earlier.

        Args:
            soonest_s: The end of the pause.
            due_s: When the next look is due if nobody asks; infinite for never.

        """
        self.soonest_s = soonest_s
        asked_s = math.inf if self.due_s == math.inf else max(self.due_s, soonest_s)
        self.due_s = min(due_s, asked_s)


REPOSITORY: Final = ""
"""The key of the directory of models; others are names of servables."""


@dataclass(frozen=True, slots=True)
class Round:
    """The looks that are to be taken now. Immutable.

    Attributes:
        now_s: When it began, by the clock.
        number: The number of the last configuration that it takes into account.
        servables: All servables that are monitored, by name.
        removed: Names that left the configuration since the last round.
        is_changed: Whether the configuration changed since the last round.
        due: Names to look at.
        is_pulse: Whether to check that the watched paths still lead to the same
            directories.
        repeated: Those of ``due`` whose versions are to be emitted again even if nothing
            changed.

    """

    now_s: float
    number: int
    servables: Mapping[str, ServableToMonitor]
    removed: Sequence[str]
    is_changed: bool
    due: Sequence[str]
    is_pulse: bool
    repeated: AbstractSet[str]


class Agenda:
    """Which base path is looked at when. Thread-safe; only ``wait...`` blocks.

    Nothing is due before ``open``; everything is due then.

    Args:
        servables: What is monitored, by name.
        clock: What it goes by.

    """

    def __init__(
        self, servables: Mapping[str, ServableToMonitor], clock: Clock
    ) -> None:
        self._clock = clock
        # Guards every field below; leaf: nothing is called under it.
        self._changed = threading.Condition()
        self._servables = servables
        self._by_directory = _by_directory(servables)
        self._times = {name: LookTime() for name in servables}
        self._repository: str | None = None
        self._removed: list[str] = []
        self._is_config_new = True
        self._repeated: AbstractSet[str] = frozenset()
        self._pulse_s = math.inf
        self._storage_due_s = math.inf
        # Looks that are not over, of the configuration that was taken in last.
        self._awaited: AbstractSet[str] = frozenset()
        self._num_taken = 0  # the number of the configuration taken in last
        self._num_asked = 0  # configurations accepted
        self._num_applied = 0  # configurations whose servables were all looked at
        self._is_open = False
        self._is_woken = False
        self._is_closed = False
        self._insist_on_all_locked()

    # -- what is looked at -------------------------------------------------------

    @property
    def servables(self) -> Mapping[str, ServableToMonitor]:
        """The monitored servables, by name. Replaced as a whole, never changed."""
        return self._servables

    def configure(self, wanted: Mapping[str, ServableToMonitor]) -> None:
        """Monitors exactly these servables from now on, and makes all of them due."""
        by_directory = _by_directory(wanted)
        with self._changed:
            before, self._servables = self._servables, wanted
            self._by_directory = by_directory
            keys = (*(self._times.keys() & {REPOSITORY}), *wanted)
            self._times = {key: self._times.get(key, LookTime()) for key in keys}
            # This includes the unchanged ones, because an operator who reloads wants
            # everything up to date, above all where nothing is polled.
            self._insist_on_all_locked()
            self._removed += before.keys() - wanted.keys()
            self._is_config_new = True
            self._num_asked += 1
            self._changed.notify_all()

    def add_repository(self, path: str) -> None:
        """Looks at a directory of models as well, which is due now."""
        with self._changed:
            self._repository = directory_of(path)
            self._times[REPOSITORY] = LookTime()
        self.insist_on(REPOSITORY)

    def wait_applied(self, deadline_s: float | None = None) -> bool:
        """Blocks until all configurations given so far have been looked at and emitted.

        Returns whether this was so by the (monotonic) deadline.
        """
        with self._changed:
            wanted = self._num_asked
            while self._num_applied < wanted and not self._is_closed:
                now_s = self._clock.now()
                if deadline_s is not None and now_s >= deadline_s:
                    return False
                self._clock.wait(self._changed, deadline_s)
            return self._num_applied >= wanted

    # -- who asks for looks --------------------------------------------------------

    def mark_changed(self, directory: str) -> None:
        """Notes that something changed in a base path, or in the directory of models."""
        now_s = self._clock.now()
        with self._changed:
            keys = list(self._by_directory.get(directory, ()))
            if directory == self._repository:
                keys.append(REPOSITORY)
            if sum(self._times[key].ask(now_s) for key in keys):
                self._changed.notify_all()

    def insist_on(self, key: str) -> None:
        """Makes a servable due, if it is still monitored, or the directory of models."""
        with self._changed:
            time = self._times.get(key)
            if time is not None:
                time.insist(self._clock.now())
                self._changed.notify_all()

    def repeat(self, name: str) -> None:
        """Makes a servable due, and has its versions emitted again.

        ``wait_applied`` waits for this as for a configuration.
        """
        with self._changed:
            time = self._times.get(name)
            if time is not None:
                time.insist(self._clock.now())
                self._repeated |= {name}
                self._num_asked += 1
                self._changed.notify_all()

    def insist_on_all(self) -> None:
        """Makes everything due."""
        with self._changed:
            self._insist_on_all_locked()
            self._changed.notify_all()

    # -- who looks -----------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether all waiting has ended for good."""
        return self._is_closed

    def open(self) -> None:
        """Lets looks be due, because the target is connected."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def close(self) -> None:
        """Ends all waiting; idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def begin_pulse(self) -> None:
        """Makes the next round check the watched paths, and repair their watches."""
        with self._changed:
            # Servables that an earlier round took in have to be watched as well.
            self._is_config_new = True
            self._pulse_s = -math.inf

    def wake(self) -> None:
        """Makes the next round due, though nothing is to be looked at in it."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def wait_due(self) -> bool:
        """Blocks until something is due; returns False once closed."""
        with self._changed:
            while not self._is_closed and not self._is_due_locked():
                due_s = self._next_due_s_locked() if self._is_open else None
                self._clock.wait(self._changed, due_s)
            return not self._is_closed

    def next_due_s(self) -> float | None:
        """Returns when, by the clock, something will be due; None if nothing will."""
        with self._changed:
            return self._clock.now() if self._is_woken else self._next_due_s_locked()

    def take_round(self, pulse_pause_s: float) -> Round:
        """Returns the looks to take now; the next pulse comes after the pause."""
        with self._changed:
            now_s = self._clock.now()
            is_pulse = now_s >= self._pulse_s
            if is_pulse:
                self._pulse_s = now_s + pulse_pause_s
            self._is_woken = False
            removed, self._removed = self._removed, []
            is_changed, self._is_config_new = self._is_config_new, False
            repeated, self._repeated = self._repeated, frozenset()
            return Round(
                now_s,
                self._num_asked,
                self._servables,
                [name for name in removed if name not in self._servables],
                is_changed,
                [k for k, time in self._times.items() if k and time.due_s <= now_s],
                is_pulse,
                repeated,
            )

    def end_round(self, number: int, looking: AbstractSet[str]) -> None:
        """Notes which looks are not over yet, of configurations up to a number."""
        with self._changed:
            if number > self._num_taken:
                self._awaited, self._num_taken = looking, number
            else:
                self._awaited &= looking
            if not self._awaited:
                self._num_applied = max(self._num_applied, self._num_taken)
            self._changed.notify_all()

    def begin(self, key: str) -> bool:
        """Notes that a look begins, if it is due; returns whether it is."""
        with self._changed:
            time = self._times.get(key)
            if time is None or time.due_s > self._clock.now():
                return False
            time.begin()
            return True

    def end(
        self,
        key: str,
        soonest_s: float,
        due_s: float,
        servable: ServableToMonitor | None = None,
    ) -> None:
        """Sets the next look, if the servable is still configured like this.

        If its base path changed during the look, it is due already. See
        ``LookTime.end``.
        """
        with self._changed:
            if self._servables.get(key) == servable and key in self._times:
                self._times[key].end(soonest_s, due_s)

    def set_storage_due(self, due_s: float | None) -> None:
        """Sets when to check on looks at places that may not answer; None is never."""
        with self._changed:
            self._storage_due_s = math.inf if due_s is None else due_s

    def _insist_on_all_locked(self) -> None:
        now_s = self._clock.now()
        for time in self._times.values():
            time.insist(now_s)

    def _is_due_locked(self) -> bool:
        if not self._is_open:
            return False
        if self._removed or self._is_config_new or self._is_woken:
            return True
        due_s = self._next_due_s_locked()
        return due_s is not None and due_s <= self._clock.now()

    def _next_due_s_locked(self) -> float | None:
        due_s = min((each.due_s for each in self._times.values()), default=math.inf)
        due_s = min(due_s, self._storage_due_s)
        if self._times:
            due_s = min(due_s, self._pulse_s)
        return None if due_s == math.inf else due_s


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
