"""One call at a time in a private CPython, and nobody behind one that hangs."""

from __future__ import annotations

import threading

import pytest

from tfs.core.errors import FailedPrecondition
from tfs.runtime.dlmopen.call_turn import CallTurn
from tfs.testing.fake_clock import FakeClock
from tfs.testing.patience import PATIENCE_S

TIMEOUT_S = 5.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def turn(clock: FakeClock) -> CallTurn:
    return CallTurn("dlmopen-0", TIMEOUT_S, clock.now)


def test_who_comes_after_a_call_that_hangs_is_refused(
    turn: CallTurn, clock: FakeClock
) -> None:
    """The refusal names the call that hangs; if it ends, others get their turn."""
    turn.take("slow/1")
    assert turn.is_taken
    assert not turn.try_take("other/1")
    clock.advance(TIMEOUT_S - 1)
    assert not turn.is_hung
    clock.advance(1)
    assert turn.is_hung
    with pytest.raises(FailedPrecondition, match=r"dlmopen-0 .*one of slow/1"):
        turn.take("other/1")
    turn.end()
    assert not turn.is_hung
    turn.take("other/1")
    turn.end()
    assert not turn.is_taken


def test_who_waits_gets_the_turn_when_the_call_ends(turn: CallTurn) -> None:
    """A call that takes its time keeps others waiting, and refuses nobody."""
    turn.take("slow/1")
    got = threading.Event()

    def wait() -> None:
        turn.take("other/1")
        got.set()
        turn.end()

    waiter = threading.Thread(target=wait)
    waiter.start()
    turn.end()
    waiter.join(PATIENCE_S)
    assert got.is_set()


def test_who_ends_an_interpreter_waits_for_its_call_but_not_for_one_that_hangs(
    turn: CallTurn, clock: FakeClock
) -> None:
    """What a call leaves behind can be put away only when it is over."""
    turn.take("slow/1")
    ender = threading.Timer(0.05, turn.end)
    ender.start()
    assert turn.try_take("the end", PATIENCE_S)
    ender.join()
    turn.end()
    turn.take("slow/1")
    clock.advance(TIMEOUT_S)
    assert not turn.try_take("the end", PATIENCE_S * 1000)


def test_a_caller_that_was_slow_has_ten_times_its_time(
    turn: CallTurn, clock: FakeClock
) -> None:
    """What took long and ended well does not hang the next time, until it is forgotten."""
    turn.take("slow/1")
    clock.advance(TIMEOUT_S - 1)
    turn.end()
    turn.take("slow/1")
    clock.advance(TIMEOUT_S * 7)
    assert not turn.is_hung
    turn.forget("slow/1")
    assert turn.is_hung


def test_without_a_timeout_nothing_hangs(clock: FakeClock) -> None:
    """Whoever does not say how long is too long waits."""
    turn = CallTurn("dlmopen-0", None, clock.now)
    turn.take("slow/1")
    clock.advance(1e9)
    assert not turn.is_hung
