"""Finds what a model's code changes for everything that runs on its thread.

Threads of the server are shared: all models in ``front`` are called on the serving loop,
and those in ``inline`` on a few threads. A default device or automatic casts that one of
them leaves behind would change what the others compute.
"""

from __future__ import annotations

from typing import Final

from tfs.runtime.guest.traces.process_settings import settings_of_thread

_HARMLESS: Final = frozenset(
    {
        "context variables",  # there are more of them; those that were there are the same
        "the priority",  # of a load, which the worker itself lowers
        "the scheduling policy",
    }
)
_OF_IMPORTS: Final = frozenset({"numpy's error handling"})
"""Settings that there are only once a library is imported."""


class ThreadState:
    """The settings of the calling thread when this is made. Confined to it."""

    def __init__(self) -> None:
        self._settings = _settings()

    def changes(self) -> list[str]:
        """Returns what differs now, in words for people; empty if nothing."""
        now = _settings()
        return [
            name
            for name, value in self._settings.items()
            if now.get(name) != value
            and name not in _HARMLESS
            and (value is not None or name not in _OF_IMPORTS)
        ]


def _settings() -> dict[str, object]:
    try:
        return settings_of_thread()
    except OSError:  # a system that does not let a process look at itself
        return {}
