"""Functions that a test runs at the same time, each on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tfs.testing.patience import PATIENCE_S


def run_together(*functions: Callable[[], object]) -> None:
    """Begins all functions at the same moment, and returns when all have ended.

    Raises:
        BaseException: The first that any of them raised.
        AssertionError: One hangs.

    """
    start = threading.Barrier(len(functions))
    errors: list[BaseException] = []

    def run(function: Callable[[], object]) -> None:
        try:
            start.wait(PATIENCE_S)
            function()
        except BaseException as error:  # raised again on the test's own thread
            errors.append(error)

    threads = [
        threading.Thread(target=run, args=(each,), daemon=True) for each in functions
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads)
