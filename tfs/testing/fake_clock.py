"""A clock that moves only when a test says so."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from tfs.testing.patience import PATIENCE_S


@dataclass(eq=False, slots=True)
class _Sleeper:
    condition: threading.Condition
    deadline_s: float | None


class FakeClock:
    """A :class:`tfs.core.clock.Clock` under the test's control. Thread-safe.

    Threads that wait on it sleep until notified or until ``advance`` passes their
    deadline; ``block_until_sleepers`` lets a test wait for them without sleeping.
    """

    def __init__(self, now_s: float = 1000.0, wall_s: float = 1_700_000_000.0) -> None:
        # Guards every field below; leaf lock.
        self._changed = threading.Condition()
        self._now_s = now_s
        self._wall_offset_s = wall_s - now_s
        self._sleepers: list[_Sleeper] = []

    def now(self) -> float:
        """Returns the fake monotonic seconds."""
        with self._changed:
            return self._now_s

    def wall_s(self) -> float:
        """Returns the fake seconds since the epoch."""
        with self._changed:
            return self._now_s + self._wall_offset_s

    def advance(self, duration_s: float) -> None:
        """Moves both times on, and wakes those whose deadline has come."""
        if duration_s < 0:
            raise ValueError("time does not go back")
        with self._changed:
            self._now_s += duration_s
            due = [
                sleeper.condition
                for sleeper in self._sleepers
                if sleeper.deadline_s is not None and sleeper.deadline_s <= self._now_s
            ]
        for condition in due:
            with condition:
                condition.notify_all()

    def set_wall(self, wall_s: float) -> None:
        """Sets the wall time alone, as an administrator or NTP may."""
        with self._changed:
            self._wall_offset_s = wall_s - self._now_s

    def wait(
        self, condition: threading.Condition, deadline_s: float | None = None
    ) -> None:
        """Blocks as :meth:`tfs.core.clock.Clock.wait` says, by the fake time."""
        sleeper = _Sleeper(condition, deadline_s)
        with self._changed:
            if deadline_s is not None and deadline_s <= self._now_s:
                return
            self._sleepers.append(sleeper)
            self._changed.notify_all()
        # ``advance`` cannot notify too early: it needs the condition's lock, which
        # this thread holds until it waits.
        try:
            condition.wait(PATIENCE_S)
        finally:
            with self._changed:
                self._sleepers.remove(sleeper)
                self._changed.notify_all()

    @property
    def num_sleepers(self) -> int:
        """How many threads wait on this clock now."""
        with self._changed:
            return len(self._sleepers)

    def block_until_sleepers(self, num: int) -> None:
        """Blocks until at least ``num`` threads wait on this clock.

        Raises:
            TimeoutError: They do not come.

        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: len(self._sleepers) >= num, PATIENCE_S
            ):
                raise TimeoutError(f"{len(self._sleepers)} of {num} sleepers came")
