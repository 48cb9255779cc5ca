"""The thread that measures and moves versions when nothing else has to be loaded.

Measurements are put off while many versions wait to be loaded, and a version that is too
slow for the serving loop is loaded once more elsewhere. Both block, and nobody waits for
either.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from tfs.servables.measuring.profiler import Profiler

log = logging.getLogger(__name__)

_JOIN_S: Final = 10.0


class LateMeasurer:
    """Takes postponed measurements, and moves versions off the loop. Thread-safe.

    Its thread, ``profiler``, starts with the first work there is.

    Args:
        profiler: Knows which measurements were put off, and takes them.
        is_crowded: Whether versions wait to be loaded, before which nothing is measured.

    """

    def __init__(self, profiler: Profiler, is_crowded: Callable[[], bool]) -> None:
        self._profiler = profiler
        self._is_crowded = is_crowded
        # Wakes the thread; leaf. Guards all that follows.
        self._changed = threading.Condition()
        self._moves: deque[Callable[[], object]] = deque()
        self._woken = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def move(self, move: Callable[[], object]) -> None:
        """Has the thread call ``move``, before it measures anything; returns at once."""
        with self._changed:
            self._moves.append(move)
        self.wake()

    def wake(self) -> None:
        """Has the thread look for work, because there may be some; returns at once."""
        with self._changed:
            if self._closed:
                return
            self._woken = True
            self._changed.notify_all()
            has_work = self._moves or self._profiler.num_postponed
            if self._thread is None and has_work:
                self._thread = threading.Thread(
                    target=self._run, name="profiler", daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """Begins nothing more; waits for what was begun, ten seconds at most."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(_JOIN_S)

    def _run(self) -> None:
        while self._is_wanted():
            try:
                while move := self._next_move():
                    move()
                while not self._is_crowded() and self._profiler.measure_postponed():
                    if self._closed:
                        return
            except Exception:
                log.exception("event=late_measuring_failed")

    def _is_wanted(self) -> bool:
        """Waits until there may be work; returns False once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._woken or self._closed)
            self._woken = False
            return not self._closed

    def _next_move(self) -> Callable[[], object] | None:
        with self._changed:
            return self._moves.popleft() if self._moves and not self._closed else None
