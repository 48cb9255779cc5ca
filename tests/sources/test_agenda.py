"""Which base path is listed when."""

from __future__ import annotations

import math

from sources.agenda import Agenda
from sources.servable_to_monitor import ServableToMonitor
from tfs.testing.fake_clock import FakeClock


def test_a_configuration_that_comes_during_a_listing_counts_once_it_was_listed() -> (
    None
):
    """The pause after a listing does not delay it: its round would list nothing of it."""
    clock = FakeClock()
    agenda = Agenda({"m": ServableToMonitor("m", "/before")}, clock)
    agenda.open()
    begun = agenda.take_round()
    agenda.configure({"m": ServableToMonitor("m", "/after")})
    for look in begun.due:
        agenda.end(look, clock.now() + 0.05, math.inf)
    agenda.end_round(begun.number, frozenset())
    assert not agenda.wait_applied(clock.now())
    again = agenda.take_round()
    assert [each.key for each in again.due] == ["m"]
    agenda.end(again.due[0], clock.now() + 0.05, math.inf)
    agenda.end_round(again.number, frozenset())
    assert agenda.wait_applied(clock.now())
