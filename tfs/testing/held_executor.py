"""An executor whose functions run when the test says so."""

from __future__ import annotations

import math
from collections.abc import Callable

from tfs.core.executor import Call


class HeldExecutor:
    """Holds what is submitted until :meth:`run_held`. Confined to the test.

    A function's exception reaches whoever runs it, which is the test.

    Attributes:
        held: What was submitted and has not run, in that order.

    """

    num_threads = num_running = 1

    def __init__(self) -> None:
        self.held: list[Callable[[], object]] = []
        self._closed = False

    def submit(
        self,
        fn: Callable[[], object],
        limit_s: float = math.inf,
        on_late: Callable[[], object] = lambda: None,
        on_end: Callable[[], object] = lambda: None,
    ) -> Call:
        """Keeps ``fn`` for later; it is never late.

        Raises:
            RuntimeError: The executor is closed.

        """
        if self._closed:
            raise RuntimeError("executor is closed")

        def run() -> None:
            try:
                fn()
            finally:
                on_end()

        self.held.append(run)
        return Call(fn, limit_s, on_late, on_end, 0.0)

    def run_held(self) -> None:
        """Runs what is held now; what is submitted meanwhile stays for the next time."""
        held, self.held = self.held, []
        for fn in held:
            fn()

    def relieve(self) -> None:
        """Does nothing, because nothing is late."""

    def close(self, deadline_s: float | None = None) -> bool:
        """Refuses later work; what is held can still be run."""
        self._closed = True
        return not self.held
