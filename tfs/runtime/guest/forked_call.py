"""Ends copies of this process that a model forks and returns from.

A model may fork while it computes. Its child that returns, or raises, would go on with
whatever called the model: it would answer the caller a second time, or run the server's
own loop on the server's own sockets. So a call is asked before and after whether it is
still in the process that it began in. ``os.getpid`` would tell as well, but is a system
call, and calls of small models take microseconds.
"""

from __future__ import annotations

import os


class Forks:
    """How often the process that this is was forked since its first ancestor."""

    __slots__ = ("depth",)

    def __init__(self) -> None:
        self.depth = 0

    def end_copy(self, depth: int) -> None:
        """Ends this process if it was forked since its depth was ``depth``."""
        if self.depth != depth:
            os._exit(0)

    def note(self) -> None:
        """Takes note that this process has just been forked."""
        self.depth += 1


FORKS = Forks()
"""Of this process."""

os.register_at_fork(after_in_child=FORKS.note)
