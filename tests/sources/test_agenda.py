"""sources.agenda: what is looked at, and when; looking is not its business."""

from __future__ import annotations

import gc
import math
import threading

import pytest

from sources.agenda import REPOSITORY, Agenda, LookTime, Round
from sources.servable_to_monitor import ServableToMonitor
from tfs.testing.fake_clock import FakeClock

PAUSE_S = 10.0


def servables(*names: str, base: str = "/models") -> dict[str, ServableToMonitor]:
    return {name: ServableToMonitor(name, f"{base}/{name}") for name in names}


class Looker:
    """An agenda, and who looks: each look is over at once, the next is never due."""

    def __init__(self, *names: str) -> None:
        self.clock = FakeClock()
        self.agenda = Agenda(servables(*names), self.clock)
        self.agenda.open()

    def round(self, looking: frozenset[str] = frozenset()) -> Round:
        now = self.agenda.take_round(PAUSE_S)
        for name in now.due:
            self.agenda.begin(name)
            self.end(now, name)
        self.agenda.end_round(now.number, looking)
        return now

    def end(self, now: Round, name: str, pause_s: float = 1.0) -> None:
        soonest_s = now.now_s + pause_s
        self.agenda.end(name, soonest_s, math.inf, now.servables[name])


@pytest.fixture
def looker() -> Looker:
    return Looker("a", "b")


def test_at_first_everything_is_due_and_then_what_changed(looker: Looker) -> None:
    """An event brings the look at what it is about, once the pause is over."""
    assert [*looker.round().due] == ["a", "b"]
    assert looker.agenda.next_due_s() is None
    looker.agenda.mark_changed("/models/b")
    assert [*looker.round().due] == []
    looker.clock.advance(1.0)
    assert [*looker.round().due] == ["b"]


def test_a_change_during_a_look_brings_another(looker: Looker) -> None:
    """What is asked for after a look began is not answered by it."""
    now = looker.agenda.take_round(PAUSE_S)
    looker.agenda.begin("a")
    looker.agenda.mark_changed("/models/a")
    looker.end(now, "a")
    looker.clock.advance(1.0)
    assert "a" in looker.agenda.take_round(PAUSE_S).due


def test_a_configuration_has_all_of_it_looked_at_and_tells_who_left(
    looker: Looker,
) -> None:
    """Once; a name that is left out and back before anybody looked did not leave."""
    looker.round()
    looker.agenda.configure(servables("b", "c"))
    now = looker.round()
    assert ([*now.removed], [*now.due], now.is_changed) == (["a"], ["b", "c"], True)
    now = looker.round()
    assert ([*now.removed], [*now.due], now.is_changed) == ([], [], False)
    looker.agenda.configure(servables("c"))
    looker.agenda.configure(servables("b", "c"))
    assert [*looker.round().removed] == []


def test_the_end_of_a_look_at_what_is_gone_sets_nothing(looker: Looker) -> None:
    """The end of a look at a removed servable or an old base path sets no next look."""
    now = looker.round()
    looker.agenda.configure(servables("a", base="/other"))
    looker.end(now, "a", 9.0)
    looker.end(now, "b", 9.0)
    looker.agenda.begin("b")
    looker.agenda.insist_on("b")
    assert [*looker.round().due] == ["a"]


def test_a_configuration_is_applied_when_its_looks_are_over(looker: Looker) -> None:
    """Looks that another thread takes are waited for; those of later rounds are not."""
    looker.round()
    looker.agenda.configure(servables("a", "b"))
    now_s = looker.clock.now()
    assert not looker.agenda.wait_applied(now_s)
    looker.round(frozenset("ab"))
    assert not looker.agenda.wait_applied(now_s)
    looker.round(frozenset("b"))
    assert not looker.agenda.wait_applied(now_s)
    looker.round(frozenset("a"))  # another look, not the one that was waited for
    assert looker.agenda.wait_applied(now_s)


def test_nothing_is_due_before_somebody_listens() -> None:
    """Who waits for work sleeps until then, and until the end."""
    clock = FakeClock()
    agenda = Agenda(servables("a"), clock)
    answers: list[bool] = []

    def work() -> None:
        answers.append(agenda.wait_due())
        agenda.begin("a")
        agenda.take_round(PAUSE_S)
        answers.append(agenda.wait_due())

    thread = threading.Thread(target=work)
    thread.start()
    clock.block_until_sleepers(1)
    assert answers == []
    agenda.open()
    while len(answers) < 1:
        clock.block_until_sleepers(1)
    agenda.close()
    thread.join(30.0)
    assert answers == [True, False]


def test_what_is_to_be_said_again_is_looked_at_and_waited_for(looker: Looker) -> None:
    """A repeated servable is looked at and waited for; an unknown one is ignored."""
    looker.round()
    looker.agenda.repeat("nobody")
    assert looker.agenda.wait_applied(0.0)
    looker.agenda.repeat("a")
    assert not looker.agenda.wait_applied(0.0)
    done = looker.round()
    assert (list(done.due), done.repeated) == (["a"], {"a"})
    assert looker.agenda.wait_applied(0.0)
    assert not looker.round().repeated


def test_a_pulse_comes_at_once_and_then_after_each_pause(looker: Looker) -> None:
    """Watched directories that became others give no event."""
    looker.round()
    looker.agenda.begin_pulse()
    now = looker.round()
    assert (now.is_pulse, now.is_changed) == (True, True)
    assert looker.agenda.next_due_s() == now.now_s + PAUSE_S
    looker.clock.advance(PAUSE_S)
    assert looker.round().is_pulse


def test_a_directory_of_models_is_looked_at_like_a_base_path(looker: Looker) -> None:
    """A directory of models is looked at now, and when something in it changes."""
    agenda = looker.agenda
    assert not agenda.begin(REPOSITORY)
    agenda.add_repository("/models/")
    assert agenda.begin(REPOSITORY)
    assert not agenda.begin(REPOSITORY)
    agenda.end(REPOSITORY, looker.clock.now(), math.inf)
    agenda.mark_changed("/models")
    assert agenda.begin(REPOSITORY)
    agenda.insist_on_all()
    agenda.configure(servables("a"))
    assert agenda.begin(REPOSITORY)


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


def test_a_change_concerns_all_that_share_its_base_path() -> None:
    """However they are written; who lies above or below has events of its own."""
    looker = Looker()
    paths = {
        "a": "/m/a",
        "b": "/m/b/",
        "twin": "file:///m/a/",
        "deep": "/m/a/deep",
        "root": "/",
    }
    looker.agenda.configure({n: ServableToMonitor(n, p) for n, p in paths.items()})
    looker.round()
    for path, names in (
        ("/m/a", {"a", "twin"}),
        ("/m/b", {"b"}),
        ("/m/a/deep", {"deep"}),
        ("/", {"root"}),
        ("/m", set[str]()),
    ):
        looker.clock.advance(1.0)
        looker.agenda.mark_changed(path)
        assert {*looker.round().due} == names


def test_the_names_of_one_path_are_nothing_for_the_collector() -> None:
    """Of tens of thousands of models, it visited each one's list in every collection."""
    agenda = Agenda(servables("m0", "m1", "m2"), FakeClock())
    gc.collect()
    assert not any(map(gc.is_tracked, agenda._by_directory.values()))
