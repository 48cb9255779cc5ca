"""An executor whose functions run when the test says so."""

from __future__ import annotations

from collections.abc import Callable


class HeldExecutor:
    """Holds what is submitted until :meth:`run_held`. Confined to the test.

    A function's exception reaches whoever runs it, which is the test.

    Attributes:
        held: What was submitted and has not run, in that order.

    """

    num_threads = 1
    num_free = 1

    def __init__(self) -> None:
        self.held: list[Callable[[], object]] = []
        self._closed = False

    def submit(self, fn: Callable[[], object]) -> None:
        """Keeps ``fn`` for later.

        Raises:
            RuntimeError: The executor is closed.

        """
        if self._closed:
            raise RuntimeError("executor is closed")
        self.held.append(fn)

    def run_held(self) -> None:
        """Runs what is held now; what is submitted meanwhile stays for the next time."""
        held, self.held = self.held, []
        for fn in held:
            fn()

    def excuse(self, num: int) -> None:
        """Does nothing, because nothing waits for a thread."""

    def close(self, deadline_s: float | None = None) -> bool:
        """Refuses later work; what is held can still be run."""
        self._closed = True
        return not self.held
