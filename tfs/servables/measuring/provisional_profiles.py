"""Keeps profiles that were measured on a busy host, until there is a quieter moment.

A profile that was measured while others kept the processors busy is not stored with
those that placement and batching rely on for good. But a server under load that gets a
new version every minute, or every second, would measure each of them, find the host
busy again (with serving), and take half a second of every processor away from its
callers each time. So such a profile is used for the next versions of the same code too,
in memory only. They are measured again only after a pause, which doubles each time, and
only if others left the processors alone while the version was loaded.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tfs.core.clock import Clock
from tfs.core.model_profile import ModelProfile
from tfs.servables.measuring.host_load import CpuSample, foreign_share, sample_cpu

FIRST_PAUSE_S: Final = 60.0
LAST_PAUSE_S: Final = 960.0
_MAX_KEPT: Final = 1024


@dataclass(slots=True)
class _Entry:
    profile: ModelProfile
    pause_s: float
    due_s: float
    seen_s: float = 0.0
    seen: CpuSample | None = None


class ProvisionalProfiles:
    """Provisional profiles by code digest. Thread-safe.

    Args:
        clock: Tells the time.
        sample: Reads the processor time used so far, given the ids of our processes.

    """

    def __init__(
        self, clock: Clock, sample: Callable[[Sequence[int]], CpuSample] = sample_cpu
    ) -> None:
        self._clock = clock
        self._sample = sample
        # Guards _entries and what is in them; leaf lock.
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def put(self, profile: ModelProfile) -> None:
        """Keeps a profile; measuring the same code again pauses twice as long."""
        now_s = self._clock.now()
        with self._lock:
            known = self._entries.pop(profile.code_digest, None)
            pause_s = FIRST_PAUSE_S
            if known is not None:
                pause_s = min(2 * known.pause_s, LAST_PAUSE_S)
            entry = _Entry(profile, pause_s, now_s + pause_s)
            self._entries[profile.code_digest] = entry
            while len(self._entries) > _MAX_KEPT:
                self._entries.popitem(last=False)

    def get(self, code_digest: str) -> ModelProfile | None:
        """Returns the provisional profile of some code; to be asked before the load."""
        now_s = self._clock.now()
        with self._lock:
            entry = self._entries.get(code_digest)
            if entry is None:
                return None
            due = now_s >= entry.due_s
        if due:
            seen = self._sample([os.getpid()])
            with self._lock:
                entry.seen, entry.seen_s = seen, now_s
        return entry.profile

    def forget(self, code_digest: str) -> None:
        """Drops the provisional profile, because the code was measured properly."""
        with self._lock:
            self._entries.pop(code_digest, None)

    def is_time_to_measure(
        self, code_digest: str, pid: int, max_foreign_share: float
    ) -> bool:
        """Tells whether measuring a loaded version now is likely to be worth it.

        It is if the pause is over and, since ``get``, others used no more than
        ``max_foreign_share`` of all processors. If they used more, another pause
        begins.

        Args:
            code_digest: Code digest of the version.
            pid: The process that it was loaded in.
            max_foreign_share: Largest share of all processors used by others, from 0 to
                1.

        """
        now_s = self._clock.now()
        with self._lock:
            entry = self._entries.get(code_digest)
            if entry is None:
                return True
            if now_s < entry.due_s or entry.seen is None:
                return False
            seen, seen_s = entry.seen, entry.seen_s
        after = self._sample([os.getpid(), pid])
        if foreign_share(seen, after, now_s - seen_s) <= max_foreign_share:
            return True
        with self._lock:
            entry.due_s, entry.seen = now_s + entry.pause_s, None
        return False
