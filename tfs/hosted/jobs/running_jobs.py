"""Keeps jobs running, by any runtime: a thread that looks after them all the time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Final

from tfs.core.clock import Clock
from tfs.hosted.jobs.job_runtime import JobRuntime, JobSpec, Seen

log = logging.getLogger(__name__)

_PAUSE_S: Final = 1.0  # after a look that failed


class RunningJobs:
    """The jobs of one runtime. Thread-safe; replicas outlive it.

    Until it is told what to keep, it lets be what an earlier one started.

    Args:
        runtime: Starts and ends replicas; used by its thread alone.
        clock: Times looks.

    Attributes:
        seen: The replicas as they were last seen. Replaced as a whole.

    """

    def __init__(self, runtime: JobRuntime, clock: Clock) -> None:
        self._runtime = runtime
        self._clock = clock
        self.seen: Seen = {}
        # Guards the next three; notified when one of them is set. Leaf.
        self._changed = threading.Condition()
        self._specs: Mapping[str, JobSpec] | None = None
        # What was seen last is after these.
        self._looked: Mapping[str, JobSpec] | None = None
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)

    def start(self) -> None:
        """Looks on a thread of its own until ``close``."""
        self._thread.start()

    def keep(self, specs: Iterable[JobSpec]) -> None:
        """Has these jobs running, in a while, and no others."""
        wanted = {each.name: each for each in specs}
        with self._changed:
            if wanted != self._specs:
                self._specs = wanted
                self._changed.notify_all()

    def look(self) -> bool:
        """Looks once, for its thread, or for who never starts it; False if that failed."""
        specs = self._specs
        if specs is None:
            return True
        try:
            self.seen = self._runtime.look(specs)
        except Exception:  # Ray has many; a cluster may be away for a while
            log.exception("event=jobs_failed")
            return False
        with self._changed:
            self._looked = specs
            self._changed.notify_all()
        return True

    def drain(self, deadline_s: float) -> bool:
        """Drains all jobs; returns whether they had ended by the deadline. Blocks."""
        self.keep(())
        with self._changed:
            while self._looked is not self._specs or self.seen:
                if self._clock.now() >= deadline_s:
                    return False
                self._clock.wait(self._changed, deadline_s)
            return True

    def close(self) -> None:
        """Ends the thread; replicas go on."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            specs = self._specs
            pause_s = self._runtime.look_s if self.look() else _PAUSE_S
            with self._changed:
                if specs is self._specs and not self._is_closing:
                    self._clock.wait(self._changed, self._clock.now() + pause_s)
                if self._is_closing:
                    return
