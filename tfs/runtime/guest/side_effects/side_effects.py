"""What a model changes in its process and on its thread, from before it is loaded."""

from __future__ import annotations

import threading

from tfs.runtime.guest.side_effects.replaced_functions import (
    KnownFunctions,
    in_a_copy,
)
from tfs.runtime.guest.side_effects.settings import (
    differing,
    settings_of_process,
    settings_of_thread,
)


class ProcessEffects:
    """Knows the process as it is when this is made. Immutable.

    Settings of single threads are left out, and so is what code adds, as every import
    does.

    Args:
        functions: The functions as they were before this process was forked; None looks
            at them now.

    """

    def __init__(self, functions: KnownFunctions | None = None) -> None:
        self._settings = settings_of_process()
        self._threads = {*threading.enumerate()}
        self._functions = functions or KnownFunctions()

    def changes(self) -> list[str]:
        """Returns what differs now, in words for people; empty if nothing."""
        found = differing(self._settings, settings_of_process())
        if {*threading.enumerate()} - self._threads:
            found.append("threads that it starts")
        return found + in_a_copy(self._functions.replaced)


class ThreadEffects:
    """Knows the calling thread as it is when this is made. Confined to it.

    Threads of the server are shared: all models in ``front`` are called on the serving
    loop, and those in ``inline`` on a few threads. A default device or automatic casts
    that one of them leaves behind would change what the others compute.
    """

    def __init__(self) -> None:
        self._settings = settings_of_thread()

    def changes(self) -> list[str]:
        """Returns what differs now, in words for people; empty if nothing."""
        return differing(self._settings, settings_of_thread())
