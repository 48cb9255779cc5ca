"""Finds what a model's code changes for everything that runs in its process."""

from __future__ import annotations

import threading
from typing import Final

from tfs.runtime.guest.traces.process_settings import settings_of_process
from tfs.runtime.guest.traces.process_surface import WatchedSurface

_EVERY_LOADS: Final = frozenset(
    {
        "Threads",
        "VmLck",
        "abstract classes",
        "functions run at the end",
        "open files",
        "the limit of memory",
    }
)
"""Settings that change when code is imported or files are mapped, and disturb nobody."""


class ProcessState:
    """The state of the process when this is made. Immutable.

    Settings of single threads are left out (gradients, numbers of threads), and so is
    what code adds, as every import does.

    Args:
        surface: The functions that can be replaced, as they were last seen.

    """

    def __init__(self, surface: WatchedSurface | None = None) -> None:
        self._settings = _settings()
        self._threads = {*threading.enumerate()}
        self._watched = surface or WatchedSurface()
        self._surface = self._watched.look()

    def changes(self) -> str:
        """Returns what differs now, as a list for people; empty if nothing."""
        now, before = _settings(), self._settings
        found = [
            name
            for name, value in before.items()
            if now.get(name) != value and name not in _EVERY_LOADS
        ]
        if {*threading.enumerate()} - self._threads:
            found.append("threads that it starts")
        return ", ".join(found + self._watched.look().changes(self._surface))


def _settings() -> dict[str, object]:
    try:
        return settings_of_process()
    except OSError:  # a system that does not let a process look at itself
        return {}
