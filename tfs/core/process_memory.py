"""Memory of a process: as the system counts it, and given back to the system. Linux only.

glibc keeps freed memory in its arenas; after a model of gigabytes, that is most of it.
``malloc_trim`` returns whole free pages, even from the middle of arenas. Before that,
Python's reference cycles have to be collected, because the modules of a package are
part of some. Both hold up other threads for a while, so they run no more often than needed.
The collector holds the GIL for 25 to 35 ms with torch imported, but for next to no time
after a ``gc.freeze()`` at the end of start-up. The trim takes each arena's lock in turn.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import threading
from collections.abc import Callable
from typing import Final

from tfs.core.clock import Clock
from tfs.core.loop.pacing import yield_to_requests


def resident_bytes(pid: int) -> int | None:
    """Returns the bytes that a process holds now; None if the system does not say."""
    return _status(pid, b"VmRSS:")


def anonymous_bytes(pid: int) -> int | None:
    """Returns the bytes not backed by a file, which the process allocated itself."""
    return _status(pid, b"RssAnon:")


def private_bytes(pid: int) -> int | None:
    """Returns the bytes that a process shares with no other. Takes 1 ms."""
    return _rollup(pid, b"Private_Clean:", b"Private_Dirty:")


def proportional_bytes(pid: int) -> int | None:
    """Returns the bytes that a process holds, with its part of those that it shares.

    If the system does not tell the parts, shared bytes count in full. Takes 1 ms.
    """
    parts = _rollup(pid, b"Pss:")
    return resident_bytes(pid) if parts is None else parts


def data_bytes(pid: int) -> int | None:
    """Returns private writable bytes, touched or not, which RLIMIT_DATA counts."""
    return _status(pid, b"VmData:")


def peak_bytes(pid: int) -> int | None:
    """Returns the most bytes it held since its start or :func:`reset_peak`."""
    return _status(pid, b"VmHWM:")


def reset_peak(pid: int) -> bool:
    """Restarts the peak from now; returns whether the system allowed it."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/clear_refs", "wb") as file:
            file.write(b"5")
        return True
    return False


def _rollup(pid: int, *fields: bytes) -> int | None:
    total = None
    path = f"/proc/{pid}/smaps_rollup"
    with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
        for line in file:
            if line.startswith(fields):
                total = (total or 0) + (int(line.split()[1]) << 10)
    return total


def _status(pid: int, field: bytes) -> int | None:
    try:
        # Bytes, because a worker without rights cannot import another text encoding.
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(field):
                    return int(line.split()[1]) << 10
    except (OSError, ValueError):
        pass
    return None


log = logging.getLogger(__name__)

TRIM_INTERVAL_S: Final = 1.0
"""During a wave of unloads there is one trim in this many seconds, and one after it."""


def _find_malloc_trim() -> Callable[[int], object] | None:
    try:
        function = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None  # not glibc
    function.argtypes = [ctypes.c_size_t]
    function.restype = ctypes.c_int
    return function


_malloc_trim = _find_malloc_trim()


def trim_heap() -> None:
    """Returns free heap pages to the system. Blocks; without glibc it does nothing."""
    if _malloc_trim is not None:
        _malloc_trim(0)


def release_to_system() -> None:
    """Collects cycles and returns free heap pages to the system. Blocks."""
    gc.collect()
    yield_to_requests()
    trim_heap()


class MemoryReleaser:
    """Calls ``release`` after unloads and failed loads, at most once per interval.

    Thread-safe. Nothing else should run the collector, or it would run for each of ten
    unloads.
    """

    def __init__(
        self,
        clock: Clock,
        release: Callable[[], None] = release_to_system,
        interval_s: float = TRIM_INTERVAL_S,
    ) -> None:
        self._clock = clock
        self._release = release
        self._interval_s = interval_s
        self._lock = threading.Lock()  # guards the two below; leaf
        self._next_s: float | None = None
        self._is_owed = False

    def owe(self) -> None:
        """Asks for a call of ``release_owed`` in time; releases nothing by itself."""
        with self._lock:
            self._is_owed = True
            if self._next_s is None:
                self._next_s = self._clock.now()

    @property
    def owed_at_s(self) -> float | None:
        """When to call ``release_owed``; None while nothing is owed."""
        with self._lock:
            return self._next_s if self._is_owed else None

    def release_owed(self) -> None:
        """Releases what is owed, if its time has come. Blocks."""
        with self._lock:
            now_s = self._clock.now()
            if not self._is_owed or (self._next_s is not None and now_s < self._next_s):
                return
            self._is_owed = False
            self._next_s = now_s + self._interval_s
        try:
            self._release()
        except Exception:  # the version's end is reported in any case
            log.exception("event=memory_release_failed")
