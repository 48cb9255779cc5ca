"""Lets requests go first while background threads load, list or decide.

Python's interpreter lock has no priorities, and a loop that is woken by a thread which
gives the lock back may be put on that thread's core. So background work proceeds in
portions and calls :func:`yield_to_requests` between them: **while requests come it
sleeps six times as long as it worked, and then until no request is being answered.**
A request that arrives then meets background work in one case of seven.

What it sleeps comes out of an allowance of half a second that grows by a fifth of the
elapsed time, so traffic delays a load by five eighths of a second and a quarter of its
time at most. All threads of a process share the allowance. In a worker, the requests
that count are those of its server, which writes them into the slab
(``tfs/runtime/process/worker_process.py``). In a program that serves nothing the call returns
at once.

Rejected: a shorter switch interval (handing the lock over costs as much as it gains),
and a lower priority for loading threads of the server (whoever waits for the lock would
then have to wait until its holder gets a processor).
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from typing import Final

SLICE_S: Final = 0.0005
"""Seconds of work after which a thread yields, if its portions allow it."""

PAUSES: Final = 6.0
"""It sleeps for this many times as long as it worked. Work that others do for it counts,
such as a call of the model in a worker."""

LONGEST_PAUSE_S: Final = 0.008
"""Longest such sleep, because work that took long may have waited, or have been an
import of seconds."""

LONGEST_WAIT_S: Final = 0.004
"""Longest wait for requests behind it."""

ALLOWANCE_S: Final = 0.5
"""Seconds that the threads of a process may sleep at the beginning."""

ALLOWED_SHARE: Final = 0.2
"""Share of the elapsed time that is added to this."""

TRAFFIC_S: Final = 60.0
"""For about this many seconds a request is followed by others."""

_LOOK_S: Final = 0.0003  # pause between looks, because each takes the lock itself


class Traffic(enum.IntEnum):
    """What background work is told of the requests beside it."""

    NONE = 0
    LATELY = 1
    NOW = 2
    AWAITED = 3
    """A request waits for a load: loads make way for nobody, other work for loads."""


class RecentTraffic:
    """The traffic of a server. Thread-safe; several may ask at once.

    Args:
        has_requests: Whether there is a request. Called on any thread, like the others.
        is_busy: Whether the server is doing something that background work should wait
            for, with or without a request.
        serves_nobody: Whether no version can be requested, so that there is no traffic
            to make way for.
        awaits_load: Whether a request waits for a version that is loaded on demand.
        now: Monotonic seconds.

    """

    def __init__(
        self,
        has_requests: Callable[[], bool],
        is_busy: Callable[[], bool],
        serves_nobody: Callable[[], bool],
        awaits_load: Callable[[], bool],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._has_requests = has_requests
        self._is_busy = is_busy
        self._serves_nobody = serves_nobody
        self._awaits_load = awaits_load
        self._now = now
        self._until_s = 0.0

    def look(self) -> Traffic:
        """Returns it; LATELY for a minute after the last request that somebody saw."""
        now_s = self._now()
        has_requests = self._has_requests()
        if has_requests:
            self._until_s = now_s + TRAFFIC_S
        if self._awaits_load():
            return Traffic.AWAITED
        if now_s >= self._until_s or self._serves_nobody():
            return Traffic.NONE
        return Traffic.NOW if has_requests or self._is_busy() else Traffic.LATELY


class Pacing:
    """What the background threads of a process share. Thread-safe.

    Several threads may set its times at once; whichever value stays is right.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._now = now
        self._sleep = sleep
        self._traffic: tuple[Callable[[], Traffic], ...] = ()
        self._resumed_s = 0.0
        self._worked_s = 0.0
        self._allowance_s = ALLOWANCE_S
        self._allowed_at_s = 0.0

    def follow(self, traffic: Callable[[], Traffic]) -> Callable[[], None]:
        """Makes way for a server's requests; returns what takes that back.

        Args:
            traffic: Tells quickly, on any thread, what there is.

        """
        self._traffic = (*self._traffic, traffic)

        def forget() -> None:
            self._traffic = tuple(each for each in self._traffic if each is not traffic)

        return forget

    def yield_to_requests(self) -> None:
        """Sleeps if there are, or lately were, requests; for 12 ms at most.

        Call it between portions of work of a few tenths of a millisecond, without a
        lock that a request could wait for, and never on a thread that answers requests.
        """
        if not self._traffic:
            return
        now_s = self._now()
        self._worked_s += now_s - self._resumed_s
        if self._worked_s >= SLICE_S:
            pause_s = min(PAUSES * self._worked_s, LONGEST_PAUSE_S)
            self._worked_s = 0.0
            if self._look() in (Traffic.LATELY, Traffic.NOW):
                self._pause(pause_s)
                self._wait()
        self._resumed_s = self._now()

    def yield_to_loads(self) -> None:
        """Sleeps for a moment while a request waits for a load; else yields to requests.

        For background work that loads nothing: a load passes through several threads, and
        each would wait some milliseconds for the interpreter lock.
        """
        if self._traffic and self._look() is Traffic.AWAITED:
            self._sleep(_LOOK_S)
        else:
            self.yield_to_requests()

    def _wait(self) -> None:
        limit_s = self._now() + LONGEST_WAIT_S
        while self._look() is Traffic.NOW and self._now() < limit_s:
            if not self._pause(_LOOK_S):
                return

    def _look(self) -> Traffic:
        return max(each() for each in self._traffic)

    def _pause(self, pause_s: float) -> bool:
        """Sleeps if that is still allowed; returns whether it was."""
        now_s = self._now()
        grown_s = (now_s - self._allowed_at_s) * ALLOWED_SHARE
        self._allowed_at_s = now_s
        self._allowance_s = min(ALLOWANCE_S, self._allowance_s + grown_s)
        if self._allowance_s < pause_s:
            return False
        self._allowance_s -= pause_s
        self._sleep(pause_s)
        return True


_of_process: Final = Pacing()
follow: Final = _of_process.follow
yield_to_requests: Final = _of_process.yield_to_requests
yield_to_loads: Final = _of_process.yield_to_loads


_FEWEST: Final = 16
_MOST: Final = 1024


class SpinBackoff:
    """Skips looks after one that was in vain, more of them after each further one.

    A look saves a wake-up where what is awaited comes from another core meanwhile.
    Where that core is taken, by the looker itself at worst, every look is in vain and
    keeps back what it looks for: then one in a thousand is still made. Confined to one
    thread.
    """

    def __init__(self) -> None:
        self._num_to_skip = 0
        self._num_next = _FEWEST

    def may_look(self) -> bool:
        """Returns whether to look this time; counts one that is skipped."""
        if self._num_to_skip:
            self._num_to_skip -= 1
            return False
        return True

    def note(self, *, found: bool) -> None:
        """Takes the outcome of a look into account."""
        if found:
            self._num_next = _FEWEST
        else:
            self._num_to_skip = self._num_next
            self._num_next = min(2 * self._num_next, _MOST)
