"""Lets background threads pause while requests are being answered.

Python's global interpreter lock has no priorities. A request releases it a dozen times
(at each operator and system call), and each time a thread that is loading a version may
take it for a whole switch interval. So a load of ten milliseconds makes every answer in
that time two to four milliseconds late. To avoid that, a loading thread checks between
two portions of its work whether a request is being answered, and lets it finish.

The pause also helps a request that only lacks a core. A loop that is woken when this
thread releases the lock is placed on the very core where this thread goes on (an idle
virtual core counts as taken). There it waits for 0.9 ms, although it asked for a short
slice. If this thread sleeps for an instant between two portions, the loop gets the
core.

While there is traffic, a load is also *paced*: it works for half a millisecond and
pauses for three; if one piece took longer, it pauses for six times as long. The reason
is that a request which arrives while a load is working pays for it whatever the
priorities: it gets a core late, or the wrong core, or one of two that share their
units. A load that worked whenever nothing was being answered would meet every request;
a paced one meets one in seven. In return a load takes a few times as long, which is a
tenth of a second if it is small. For a large one, pauses come out of an allowance of
half a second that grows by a fifth of the elapsed time, so traffic delays a load by at
most five eighths of a second and a quarter of its time. All loading threads of a
process share its slices and its allowance.

There is one right of way per process, as there is one lock. In a worker, the requests
that count are those of its server (``tfs/runtime/process/load_sign.py``). In library
use, where nothing answers requests, checking costs next to nothing and never waits.

Rejected: a shorter switch interval (handing the lock over costs as much as it gains),
and a lower priority for loading threads (whoever waits for the lock would then have to
wait until its holder gets a processor).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

LONGEST_WAIT_S: Final = 0.004
"""Longest pause for requests, in seconds: a server that is never idle must still be
able to load versions."""

WORK_S: Final = 0.010
"""After a pause that did not help, because requests went on, no thread pauses again for
this many seconds."""

SLICE_S: Final = 0.0005
"""Seconds that a load works beside traffic before it pauses, if its portions allow
it."""

PAUSES: Final = 6.0
"""It then pauses for this many times as long as it worked. Work that others do for it
counts, such as a call of the model in a worker."""

LONGEST_PAUSE_S: Final = 0.008
"""Longest such pause in seconds, because work that took long may have waited, or have
been an import of seconds."""

ALLOWANCE_S: Final = 0.5
"""Seconds of pauses that loads may make at the beginning."""

_ALLOWED_SHARE: Final = 0.2  # share of the elapsed time that is added to this

# For about this many seconds a request is followed by others. Whether one is being
# answered when a load asks is chance, and a load that sleeps only after it saw one has
# already done harm by then.
_TRAFFIC_S: Final = 60.0
_LOOK_S: Final = 0.0003  # pause between looks, because each takes the lock itself
_BREATH_S: Final = 0.00002  # long enough for a thread that waits to get the lock


@dataclass(frozen=True, slots=True, eq=False)
class _Answerer:
    is_answering: Callable[[], bool]
    has_requests: Callable[[], bool]
    serves_nobody: Callable[[], bool]
    shares_lock: bool


class RightOfWay:
    """What a process's loads know of its requests. Thread-safe.

    Several threads may set its times at once; whichever value stays is right.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._now = now
        self._sleep = sleep
        self._answerers: tuple[_Answerer, ...] = ()
        self._lock_wanted_until_s = 0.0
        self._traffic_until_s = 0.0
        self._work_until_s = 0.0
        self._resumed_s = 0.0
        self._worked_s = 0.0
        self._allowance_s = ALLOWANCE_S
        self._allowed_at_s = 0.0

    def note_answerer(
        self,
        is_answering: Callable[[], bool],
        has_requests: Callable[[], bool] | None = None,
        serves_nobody: Callable[[], bool] = lambda: False,
        *,
        shares_lock: bool = True,
    ) -> Callable[[], None]:
        """Has loads wait for a server; returns what takes that back.

        Args:
            is_answering: Whether the server is doing something that loads should wait
                for; quick, called on any thread.
            has_requests: Whether there is a request; loads are paced then, and for a
                minute afterwards. Called like ``is_answering``, which stands in for
                None.
            serves_nobody: Whether the server itself waits for loads, so that they are
                not paced. Called in the same way.
            shares_lock: Whether the server runs under this process's interpreter lock.

        """
        answerer = _Answerer(
            is_answering, has_requests or is_answering, serves_nobody, shares_lock
        )
        self._answerers = (*self._answerers, answerer)

        def forget() -> None:
            self._answerers = tuple(
                each for each in self._answerers if each is not answerer
            )

        return forget

    def has_traffic(self) -> bool:
        """Returns whether loads should be paced. Any thread.

        That is the case while there is a request and for a minute afterwards, as far as
        anybody asked in time, unless the server waits for loads itself.
        """
        now_s = self._now()
        if any(each.has_requests() for each in self._answerers):
            self._traffic_until_s = now_s + _TRAFFIC_S
        return now_s < self._traffic_until_s and not all(
            each.serves_nobody() for each in self._answerers
        )

    def make_way(self) -> None:
        """Blocks while requests are answered, and paces its caller if there is traffic.

        It blocks for 12 ms at most. Call it between portions of work of a few tenths of
        a millisecond, without a lock that a request could wait for, and never on a
        thread that answers requests.
        """
        if not self._answerers:
            return
        now_s = self._now()
        self._worked_s += now_s - self._resumed_s
        is_paced = self._worked_s >= SLICE_S and self.has_traffic()
        pause_s = min(PAUSES * self._worked_s, LONGEST_PAUSE_S)
        if is_paced and self._takes_allowance(now_s, pause_s):
            self._worked_s = 0.0
            self._sleep(pause_s)
        self._wait()
        self._resumed_s = self._now()

    def _wait(self) -> None:
        """Blocks while requests are answered, for 4 ms at most."""
        now_s = self._now()
        if not self._is_answering():
            if now_s < self._lock_wanted_until_s and self._shares_lock():
                # A thread that woke up to read the next request is not seen here until
                # it has the lock, and a core.
                self._sleep(_BREATH_S)
            return
        self._lock_wanted_until_s = now_s + _TRAFFIC_S
        if now_s < self._work_until_s:
            return
        limit_s = now_s + LONGEST_WAIT_S
        while self._is_answering():
            now_s = self._now()
            if now_s >= limit_s:
                self._work_until_s = now_s + WORK_S
                return
            self._sleep(_LOOK_S)

    def _takes_allowance(self, now_s: float, pause_s: float) -> bool:
        """Takes a pause out of the allowance; returns whether there was enough."""
        grown_s = (now_s - self._allowed_at_s) * _ALLOWED_SHARE
        self._allowed_at_s = now_s
        self._allowance_s = min(ALLOWANCE_S, self._allowance_s + grown_s)
        if self._allowance_s < pause_s:
            return False
        self._allowance_s -= pause_s
        return True

    def _shares_lock(self) -> bool:
        return any(each.shares_lock for each in self._answerers)

    def _is_answering(self) -> bool:
        return any(each.is_answering() for each in self._answerers)


_of_process: Final = RightOfWay()
note_answerer: Final = _of_process.note_answerer
make_way: Final = _of_process.make_way
has_traffic: Final = _of_process.has_traffic
