"""Steps a manager: when something has changed, and at the times that it asks for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tfs.core.clock import Clock
from tfs.core.loop.pacing import yield_to_requests

log = logging.getLogger(__name__)

_PAUSE_AFTER_FAULT_S = 1.0  # a step that raises is a bug and must not busy-loop


class Driver:
    """Calls ``step`` when it may have something to do, on its own thread or the caller's.

    Thread-safe. There is no polling: ``step`` returns when it wants to run next, and
    ``wake`` brings that forward. Wake-ups during a step cause one more.

    Args:
        step: Returns when, by ``clock``, it wants to run next; None to run only when
            woken.
        clock: The clock.
        name: The thread's name.

    """

    def __init__(
        self, step: Callable[[], float | None], clock: Clock, name: str
    ) -> None:
        self._step = step
        self._clock = clock
        self._name = name
        # Guards the three fields below; leaf: ``step`` runs outside it.
        self._changed = threading.Condition()
        self._num_wakes = 0
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread; the first step runs at once. Once only."""
        with self._changed:
            if self._thread is not None or self._is_closed:
                raise RuntimeError(f"{self._name} was started already")
            self._thread = threading.Thread(
                target=self._run, name=self._name, daemon=True
            )
            self._thread.start()

    def wake(self) -> None:
        """Makes ``step`` run soon; quick, from any thread, also before ``start``."""
        with self._changed:
            self._num_wakes += 1
            self._changed.notify_all()

    def step_until(
        self, is_over: Callable[[], bool], deadline_s: float | None = None
    ) -> bool:
        """Steps on the caller's thread until ``is_over``, or until the deadline.

        Blocks between steps. Several callers may do this at once, and while the thread
        runs, if ``step`` allows that. Whatever makes ``is_over`` true must call
        ``wake``.

        Returns:
            Whether it is over.

        """
        while True:
            num_seen = self._num_wakes
            next_s = self._step()
            if is_over():
                return True
            with self._changed:
                while num_seen == self._num_wakes:
                    now_s = self._clock.now()
                    if deadline_s is not None and now_s >= deadline_s:
                        return False
                    if next_s is not None and now_s >= next_s:
                        break
                    times_s = [t for t in (next_s, deadline_s) if t is not None]
                    self._clock.wait(self._changed, min(times_s, default=None))

    def close(self) -> None:
        """Ends the thread after the step in progress; blocks for it. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while True:
            num_seen = self._num_wakes
            next_s = self._run_step()
            with self._changed:
                while num_seen == self._num_wakes and not self._is_closed:
                    if next_s is not None and self._clock.now() >= next_s:
                        break
                    self._clock.wait(self._changed, next_s)
                if self._is_closed:
                    return

    def _run_step(self) -> float | None:
        yield_to_requests()
        try:
            return self._step()
        except Exception:
            log.exception("event=step_failed thread=%s", self._name)
            return self._clock.now() + _PAUSE_AFTER_FAULT_S
