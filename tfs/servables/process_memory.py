"""Memory of a process as the system counts it, its peak included. Linux only."""

from __future__ import annotations

import contextlib


def resident_bytes(pid: int) -> int | None:
    """Returns memory the process holds now; None where the system does not say."""
    return _status(pid, "VmRSS:")


def peak_bytes(pid: int) -> int | None:
    """Returns the most it held since its start or :func:`reset_peak`."""
    return _status(pid, "VmHWM:")


def reset_peak(pid: int) -> bool:
    """Makes the peak start from now; returns whether the system allowed it."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
        return True
    return False


def _status(pid: int, field: str) -> int | None:
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith(field):
                    return int(line.split()[1]) << 10
    except (OSError, ValueError):
        pass
    return None
