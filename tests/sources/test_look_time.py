"""When something is looked at next, whoever asks for it."""

from __future__ import annotations

import math

from sources.look_time import LookTime


def test_what_is_asked_for_is_due_at_once_unless_a_look_has_just_been() -> None:
    """Events wait for the pause after a look, configurations do not."""
    time = LookTime()
    assert time.ask(10)
    assert time.due_s == 10
    time.begin()
    time.end(soonest_s=12, due_s=math.inf)
    assert time.ask(11)
    assert time.due_s == 12
    time.insist(11)
    assert time.due_s == 11


def test_the_earliest_of_those_who_ask_counts() -> None:
    """Whoever asks for a later look than is due anyway changes nothing."""
    time = LookTime()
    time.end(soonest_s=0, due_s=5)
    assert not time.ask(6)
    assert time.due_s == 5
    assert time.ask(4)
    assert time.due_s == 4


def test_what_is_asked_for_during_a_look_is_another_one() -> None:
    """It is due once the pause is over, if nothing is due before; else only that is."""
    asked, quiet = LookTime(), LookTime()
    for time in (asked, quiet):
        time.insist(10)
        time.begin()
    assert asked.ask(10.5)
    for time in (asked, quiet):
        time.end(soonest_s=11, due_s=20)
    assert (asked.due_s, quiet.due_s) == (11, 20)
    quiet.begin()
    quiet.end(soonest_s=21, due_s=math.inf)
    assert quiet.due_s == math.inf
