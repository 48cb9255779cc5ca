"""Tests of the helper by which tests run functions at the same time."""

from __future__ import annotations

import threading

import pytest

from tests.threads import run_together


def test_all_run_at_the_same_time() -> None:
    """Each may wait for the others."""
    meeting = threading.Barrier(3, timeout=20)
    places: list[int] = []
    run_together(*[lambda: places.append(meeting.wait())] * 3)
    assert sorted(places) == [0, 1, 2]


def test_what_one_raises_fails_the_test() -> None:
    """A fault on another thread does not pass for a success."""
    with pytest.raises(ZeroDivisionError):
        run_together(lambda: None, lambda: 1 // 0)
