"""What a load takes of a worker's memory. Knows no torch."""

from __future__ import annotations

import os

from tfs.core.process_memory import (
    anonymous_bytes,
    peak_bytes,
    reset_peak,
    resident_bytes,
)


class LoadMeter:
    """Sees what a load takes of this process. Confined to the loading thread.

    A worker is alone with its load, so that the growth is the model's. What it maps of
    shared files is left out: all workers of a version hold that once.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._can_see_peak = reset_peak(self._pid)
        self._before_bytes = anonymous_bytes(self._pid)

    def read(self, shared_bytes: int) -> dict[str, object]:
        """Returns what stays, with the shared bytes, and the peak above it.

        What the system does not tell is absent.
        """
        found: dict[str, object] = {}
        after, held = anonymous_bytes(self._pid), resident_bytes(self._pid)
        if after is not None and self._before_bytes is not None:
            found["resident_bytes"] = shared_bytes + max(0, after - self._before_bytes)
        peak = peak_bytes(self._pid)
        if self._can_see_peak and peak is not None and held is not None:
            found["load_peak_bytes"] = max(0, peak - held)
        return found
