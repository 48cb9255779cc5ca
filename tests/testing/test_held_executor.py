"""The executor that tests run by hand does as the seam says."""

from __future__ import annotations

import pytest

from tfs.core.executor import Executor
from tfs.testing.held_executor import HeldExecutor


def test_functions_run_in_order_when_the_test_says_so() -> None:
    """One that submits another leaves it for the next time."""
    held = HeldExecutor()
    executor: Executor = held
    ran: list[str] = []

    def first() -> None:
        ran.append("first")
        executor.submit(lambda: ran.append("third"))

    executor.submit(first)
    executor.submit(lambda: ran.append("second"))
    assert (ran, len(held.held)) == ([], 2)
    held.run_held()
    assert (ran, len(held.held)) == (["first", "second"], 1)
    held.run_held()
    assert (ran, held.held) == (["first", "second", "third"], [])


def test_a_closed_executor_takes_nothing_but_runs_what_it_holds() -> None:
    """Closing says whether everything has run."""
    executor = HeldExecutor()
    ran: list[str] = []
    executor.submit(lambda: ran.append("held"))
    assert not executor.close()
    with pytest.raises(RuntimeError, match="closed"):
        executor.submit(lambda: ran.append("late"))
    executor.run_held()
    assert ran == ["held"]
    assert executor.close()
