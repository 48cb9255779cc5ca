"""Memory of a process as the system counts it, its peak included. Linux only."""

from __future__ import annotations

import contextlib


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
