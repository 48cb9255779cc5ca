"""The interpreters within the server process: its loop, its threads, private Pythons.

Importing this imports torch, which takes a second. Only :mod:`tfs.server.placing.interpreters`
does that, once the ports are open or when the first version is to run here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.servable_id import ServableId
from tfs.runtime.dlmopen.dlmopen_backend import DlmopenBackend
from tfs.runtime.inline.inline_interpreter import InlineInterpreter
from tfs.runtime.interpreter import Interpreter
from tfs.runtime.placement import Backend


class InProcessInterpreters:
    """Owns them. Only for callers that hold its owner's lock; ``close`` blocks.

    Args:
        loop: The serving loop: front models run on it.
        num_threads: Threads for calls.
        num_private_pythons: Interpreters of backend dlmopen.
        max_queued: Calls that may wait for one interpreter.
        call_timeout_s: When a call in a private Python counts as hung.
        on_slow: Called on the loop when a front model took too long.
        on_hang: Called on any thread with a version whose call hangs in a private
            Python, and a text about that; with an empty text once the call has ended.

    """

    def __init__(
        self,
        loop: ServingLoop,
        *,
        num_threads: int,
        num_private_pythons: int,
        max_queued: int,
        call_timeout_s: float,
        on_slow: Callable[[ServableId, float], None],
        on_hang: Callable[[ServableId, str], None],
    ) -> None:
        clock = loop.clock
        self._front = InlineInterpreter(
            "front",
            max_queued=max_queued,
            clock=clock,
            front_loop=loop,
            on_slow=on_slow,
        )
        self._inline = [
            InlineInterpreter(
                f"inline-{index}",
                max_queued=max_queued,
                clock=clock,
            )
            for index in range(num_threads)
        ]
        self._turns = itertools.cycle(self._inline)
        self._private = DlmopenBackend(
            num_private_pythons,
            max_queued=max_queued,
            clock=clock,
            call_timeout_s=call_timeout_s,
            on_hang=on_hang,
        )

    def of(self, backend: Backend, num_private_pythons: int) -> Interpreter:
        """Returns the interpreter for one version; started now unless it already was."""
        if backend is Backend.DLMOPEN:
            found: Interpreter = self._private.group(num_private_pythons)
        else:
            found = self._front if backend is Backend.FRONT else next(self._turns)
        found.start()
        return found

    def close(self, deadline_s: float) -> None:
        """Ends them."""
        self._front.close(deadline_s)
        for inline in self._inline:
            inline.close(deadline_s)
        self._private.close(deadline_s)
