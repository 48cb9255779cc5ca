"""What the figures were measured on. Linux only, as the server is."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path

# A load average above this many busy cores, before anything was started, means that
# others compete for the machine.
QUIET_LOAD = 0.3


def describe(proc: Path = Path("/proc")) -> str:
    """Returns processor, cores this process may use, memory, kernel, versions."""
    parts = [
        _first(r"^model name\s*:\s*(.+)$", proc / "cpuinfo") or platform.machine(),
        f"{len(os.sched_getaffinity(0))} cores",
    ]
    memory_kib = _first(r"^MemTotal:\s*(\d+) kB$", proc / "meminfo")
    if memory_kib is not None:
        parts.append(f"{int(memory_kib) / 2**20:.0f} GiB")
    parts.append(f"Linux {platform.release()}")
    parts.append(f"Python {platform.python_version()}")
    parts += [f"{name} {_version(name)}" for name in ("torch", "grpcio")]
    return ", ".join(parts)


def find_other_load(proc: Path = Path("/proc")) -> str | None:
    """Returns the last minute's load if others use the machine, else None."""
    load = float((proc / "loadavg").read_text().split()[0])
    return f"load {load:.2f}" if load > QUIET_LOAD else None


def _first(pattern: str, path: Path) -> str | None:
    match = re.search(pattern, path.read_text(), re.MULTILINE)
    return match[1].strip() if match else None


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "absent"
