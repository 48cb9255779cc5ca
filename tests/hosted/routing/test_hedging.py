"""When a late request is sent a second time, and for how many at most."""

from __future__ import annotations

import math

import pytest

from tfs.core.errors import InvalidArgument
from tfs.hosted.identities import ControlOptions
from tfs.hosted.routing.hedging import Hedging
from tfs.hosted.service import ServiceOptions


def test_the_delay_is_what_nineteen_of_twenty_took() -> None:
    """The latest latencies count, and only once there are enough."""
    hedging = Hedging(0.05)
    for _ in range(19):
        hedging.note_latency(0.5)
    assert hedging.delay_s is None
    for index in range(200):
        hedging.note_latency((index + 1) / 1000)
    assert hedging.delay_s == 0.191
    for _ in range(200):
        hedging.note_latency(0.0001)
    assert hedging.delay_s == 0.001


def test_second_requests_are_a_twentieth_of_the_first() -> None:
    """When everything is late, nothing is sent twice as often."""
    hedging = Hedging(0.05)
    taken = 0
    for _ in range(1000):
        hedging.note_request()
        taken += hedging.take()
    assert 50 <= taken <= 51


def test_quiet_times_save_up_ten_second_requests_at_most() -> None:
    """A server that gets slow must not get all that was saved up in a day at once."""
    hedging = Hedging(0.05)
    for _ in range(1000):
        hedging.note_request()
    assert sum(hedging.take() for _ in range(50)) == 10


def test_without_a_budget_nothing_is_sent_twice() -> None:
    """A budget of 0 switches hedging off."""
    hedging = Hedging(0.0)
    for _ in range(50):
        hedging.note_request()
        hedging.note_latency(1.0)
    assert hedging.delay_s is None
    assert not hedging.take()


@pytest.mark.parametrize("budget", [math.nan, -0.1, 1.1])
def test_a_bad_budget_is_refused_on_creation(budget: float) -> None:
    """More than all requests is a slip, and NaN is no number."""
    with pytest.raises(InvalidArgument, match="budget must be"):
        ServiceOptions(ControlOptions(), hedge_budget=budget)
