"""Lets threads that compute in Python stop while requests are answered.

Python's lock knows no priorities. A request gives it back a dozen times (for each
operator, each system call), and each time a thread that loads a version may keep it for
a whole switch interval: a load of ten milliseconds makes every answer in that time two
to four milliseconds late. So a thread that loads asks, between two portions of its work,
whether somebody is being answered, and lets that finish.

It helps one that only lacks a core, too. A loop that this thread wakes up, by giving it
the lock, is put on the core where this thread goes on (an idle virtual core counts as
taken), and waits there for 0.9 ms although it asked for a short slice. A thread that
sleeps for an instant between two portions lets it in.

There is one per process, like the lock. In a worker, what answers requests is its server
(``tfs/runtime/process/load_sign.py``). Where nothing does, in library use, asking costs
next to nothing and never waits.

Rejected: a shorter switch interval (handing the lock over costs as much as it gains);
a lower priority for threads that load (whoever waits for the lock would then wait for
its holder to get a processor).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

LONGEST_WAIT_S: Final = 0.004
"""Longest pause for requests: a server that is never idle must still be able to load
versions."""

WORK_S: Final = 0.010
"""After a pause in vain (requests went on), no thread pauses again for so long."""

# One request is followed by others for about this long. It is by chance that one is being
# answered when a load asks: a load that sleeps between portions only after it saw one has
# done its worst by then.
_TRAFFIC_S: Final = 60.0
_LOOK_S: Final = 0.0003  # each look takes the lock itself
_BREATH_S: Final = 0.00002  # long enough for a thread that waits to get the lock


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
        self._answerers: tuple[Callable[[], bool], ...] = ()
        self._traffic_until_s = 0.0
        self._work_until_s = 0.0

    def note_answerer(self, is_answering: Callable[[], bool]) -> Callable[[], None]:
        """Has loads wait for a server; returns what takes that back.

        Args:
            is_answering: Whether it works on requests; quick, called on any thread.

        """
        self._answerers = (*self._answerers, is_answering)

        def forget() -> None:
            self._answerers = tuple(
                each for each in self._answerers if each is not is_answering
            )

        return forget

    def make_way(self) -> None:
        """Blocks while requests are answered, for 4 ms at most.

        Call it between portions of work of a few tenths of a millisecond, holding no lock
        that a request could wait for, and never on a thread that answers.
        """
        if not self._answerers:
            return
        now_s = self._now()
        if not self._is_answering():
            if now_s < self._traffic_until_s:
                # A thread that woke up to read the next request is not seen here until
                # it has the lock, and a core.
                self._sleep(_BREATH_S)
            return
        self._traffic_until_s = now_s + _TRAFFIC_S
        if now_s < self._work_until_s:
            return
        limit_s = now_s + LONGEST_WAIT_S
        while self._is_answering():
            now_s = self._now()
            if now_s >= limit_s:
                self._work_until_s = now_s + WORK_S
                return
            self._sleep(_LOOK_S)

    def _is_answering(self) -> bool:
        return any(is_answering() for is_answering in self._answerers)


_of_process: Final = RightOfWay()
note_answerer: Final = _of_process.note_answerer
make_way: Final = _of_process.make_way
