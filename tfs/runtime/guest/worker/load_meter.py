"""Measures how much memory of a worker a load takes. Does not use torch."""

from __future__ import annotations

import os

from tfs.core.system.process_memory import (
    anonymous_bytes,
    peak_bytes,
    reset_peak,
    resident_bytes,
)


class LoadMeter:
    """Measures how a load makes this process grow. Confined to the loading thread.

    A worker does nothing else during its load, so that the growth is the model's.
    Mapped shared files are left out, because all workers of a version share them.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._can_see_peak = reset_peak(self._pid)
        self._before_bytes = anonymous_bytes(self._pid)

    def read(self, shared_bytes: int) -> dict[str, object]:
        """Returns the memory that stays, including the shared bytes, and the peak above it.

        Numbers that the system does not tell are absent.
        """
        found: dict[str, object] = {}
        after, held = anonymous_bytes(self._pid), resident_bytes(self._pid)
        if after is not None and self._before_bytes is not None:
            found["resident_bytes"] = shared_bytes + max(0, after - self._before_bytes)
        peak = peak_bytes(self._pid)
        if self._can_see_peak and peak is not None and held is not None:
            found["load_peak_bytes"] = max(0, peak - held)
        return found
