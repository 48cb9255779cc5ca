"""tfs.runtime.process.worker_requests: results of the loop, awaited elsewhere."""

from __future__ import annotations

import math

import pytest

from tfs.core.errors import DeadlineExceeded, Internal
from tfs.runtime.process.worker_requests import Waiter


def test_a_wait_ends_with_what_was_set() -> None:
    """A value, an error, or the caller's own error when the time is up."""
    late = DeadlineExceeded("late")
    waiter: Waiter[int] = Waiter()
    with pytest.raises(DeadlineExceeded):
        waiter.wait(0.0, late)
    waiter.set(1)
    assert waiter.wait(0.0, late) == 1
    failed: Waiter[int] = Waiter()
    failed.fail(Internal("broken"))
    with pytest.raises(Internal):
        failed.wait(0.0, late)


@pytest.mark.parametrize("timeout_s", [math.inf, 1e15])
def test_a_timeout_without_end_is_one(timeout_s: float) -> None:
    """Whoever bounds no call (--interpreter_call_timeout_s=inf) can load versions."""
    waiter: Waiter[int] = Waiter()
    waiter.set(1)
    assert waiter.wait(timeout_s, DeadlineExceeded("late")) == 1
