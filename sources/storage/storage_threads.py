"""Threads for storage that may not answer: a store, a network mount.

A call to a dead mount cannot be interrupted, so it keeps its thread until the mount
comes back. What must not happen is that anybody else waits for it. Therefore the calls
of each *place* (a store, a mount) have threads of their own, and a call that is late is
left alone with its thread while another thread goes on with what waits behind it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from tfs.core.clock import Clock, MonotonicClock

log = logging.getLogger(__name__)

PATIENCE_S: Final = 2.0
"""How long a call may take before others stop waiting for it."""
_NUM_THREADS: Final = 4  # at the same time for one place, besides those of late calls
_MAX_NUM_THREADS: Final = 32  # in all for one place; further calls wait and report it


class StorageCall:
    """A call that was submitted. Guarded by the lock of its threads.

    Attributes:
        asked_s: When it was submitted, by the clock.
        begun_s: When it began; None before.
        is_over: Whether it has ended.
        patience_s: How long it may take.

    """

    __slots__ = ("asked_s", "begun_s", "fn", "is_over", "patience_s")

    def __init__(
        self, fn: Callable[[], object], asked_s: float, patience_s: float
    ) -> None:
        self.fn = fn
        self.asked_s = asked_s
        self.patience_s = patience_s
        self.begun_s: float | None = None
        self.is_over = False

    def is_late(self, now_s: float) -> bool:
        """Whether it has been running for longer than it may."""
        begun_s = self.begun_s
        return begun_s is not None and now_s >= begun_s + self.patience_s


class _Lane:
    """The calls of one place."""

    __slots__ = ("num_threads", "running", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[StorageCall] = deque()
        self.running: list[StorageCall] = []
        self.num_threads = 0

    def has_room(self, now_s: float) -> bool:
        """Whether another thread may begin with the waiting calls."""
        num_late = sum(call.is_late(now_s) for call in self.running)
        return (
            self.num_threads - num_late < _NUM_THREADS
            and self.num_threads < _MAX_NUM_THREADS
        )

    def is_stuck(self, now_s: float) -> bool:
        """Whether waiting calls wait only for late ones, and get no other thread."""
        return self.num_threads >= _MAX_NUM_THREADS and all(
            call.is_late(now_s) for call in self.running
        )


class StorageThreads:
    """Runs calls of different places beside each other. Thread-safe, never blocks.

    The daemon threads are named ``storage``. They are started when there is something
    to do, and end when there is nothing. The thread that submits also calls
    ``relieve``, at the times that it returns.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        # Guards every field below and the calls; leaf: nothing is called under it.
        self._lock = threading.Lock()
        self._lanes: dict[str, _Lane] = {}
        self._is_closed = False

    def submit(
        self, place: str, fn: Callable[[], object], patience_s: float = PATIENCE_S
    ) -> StorageCall:
        """Runs ``fn`` on a thread of ``place``; what it raises is logged.

        Raises:
            RuntimeError: They are closed; ``fn`` will not run.

        """
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the storage threads are closed")
            now_s = self._clock.now()
            call = StorageCall(fn, now_s, patience_s)
            lane = self._lanes.setdefault(place, _Lane())
            lane.waiting.append(call)
            if lane.has_room(now_s):
                self._start_locked(place, lane)
        return call

    def is_late(self, place: str, call: StorageCall) -> bool:
        """Whether nobody should wait for ``call``: it is late or behind late calls."""
        with self._lock:
            now_s = self._clock.now()
            if call.is_over or call.begun_s is not None:
                return not call.is_over and call.is_late(now_s)
            lane = self._lanes.get(place)
            return lane is not None and lane.is_stuck(now_s)

    def relieve(self) -> float | None:
        """Starts threads for calls that wait behind late ones.

        Returns:
            When, by the clock, another call may be late; None if nothing runs that
            is not late already.

        """
        with self._lock:
            now_s = self._clock.now()
            times_s = list[float]()
            for place, lane in self._lanes.items():
                for _ in range(len(lane.waiting)):
                    if not lane.has_room(now_s):
                        break
                    self._start_locked(place, lane)
                times_s += [
                    (call.asked_s if call.begun_s is None else call.begun_s)
                    + call.patience_s
                    for call in (*lane.running, *lane.waiting)
                ]
            return min((each for each in times_s if each > now_s), default=None)

    def close(self) -> None:
        """Takes no more calls, and forgets those that wait. Does not block."""
        with self._lock:
            self._is_closed = True
            for lane in self._lanes.values():
                lane.waiting.clear()

    def _start_locked(self, place: str, lane: _Lane) -> None:
        lane.num_threads += 1
        thread = threading.Thread(
            target=self._work, args=(place, lane), name="storage", daemon=True
        )
        thread.start()

    def _work(self, place: str, lane: _Lane) -> None:
        while True:
            with self._lock:
                if not lane.waiting:
                    lane.num_threads -= 1
                    if not lane.num_threads:
                        del self._lanes[place]
                    return
                call = lane.waiting.popleft()
                call.begun_s = self._clock.now()
                lane.running.append(call)
            try:
                call.fn()
            except Exception:
                log.exception("event=storage_call_failed place=%s", place)
            with self._lock:
                call.is_over = True
                lane.running.remove(call)
