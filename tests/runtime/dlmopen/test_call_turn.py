"""One call at a time in a private CPython, and nobody behind one that never ends."""

from __future__ import annotations

import threading

import pytest

from tfs.core.errors import FailedPrecondition
from tfs.runtime.dlmopen.dlmopen_interpreter import CallTurn
from tfs.testing.patience import PATIENCE_S


def test_who_waits_gets_the_turn_when_the_call_ends() -> None:
    """A call that takes its time keeps others waiting, and refuses nobody."""
    turn = CallTurn("dlmopen-0", None)
    got = threading.Event()

    def wait() -> None:
        with turn:
            got.set()

    waiter = threading.Thread(target=wait)
    with turn:
        waiter.start()
        assert turn.is_taken
        assert not got.is_set()
    assert got.wait(PATIENCE_S)
    waiter.join(PATIENCE_S)
    assert not turn.is_taken


def test_nobody_waits_for_ever_behind_a_call_that_hangs() -> None:
    """Who has waited long enough is told that it cannot be ended, and may come again."""
    turn = CallTurn("dlmopen-0", 0.0)
    with turn:
        assert not turn.take(0.0)
        with (
            pytest.raises(FailedPrecondition, match=r"in interpreter dlmopen-0.*ended"),
            turn,
        ):
            raise AssertionError("two calls at once")
    with turn:
        assert turn.is_taken
