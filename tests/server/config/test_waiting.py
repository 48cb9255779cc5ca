"""Callers who wait for a config are remembered until they were told."""

from __future__ import annotations

import weakref
from dataclasses import replace

import pytest

from tfs.core.errors import DataLoss, Unavailable
from tfs.core.executor import Executor, InlineExecutor
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.server.config.waiting import (
    ConfigOutcome,
    ConfigWaiters,
    ModelLook,
    Recheck,
    Waiter,
    error_of,
    failure_of,
)
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_loop import FakeLoop
from tfs.testing.held_executor import HeldExecutor


class Waiting:
    """Who waits for a model m, of which a test says what is known."""

    def __init__(self) -> None:
        self.look = ModelLook()
        self.clock = FakeClock()
        self.loop = FakeLoop(self.clock)
        self.waiters = ConfigWaiters(
            lambda _: self.look, lambda: True, self.clock, self.loop, InlineExecutor()
        )
        self.told: list[ConfigOutcome] = []

    def waiter(
        self, change: pb.ModelOutcome.Change = pb.ModelOutcome.CHANGED
    ) -> Waiter:
        """Returns one who waits for m."""
        changes = (pb.ModelOutcome(model="m", change=change),)
        return Waiter(self.told.append, frozenset({"m"}), changes, is_base=False)


@pytest.fixture
def waiting() -> Waiting:
    """Returns nobody who waits."""
    return Waiting()


def test_who_was_told_is_not_kept_until_the_deadline(waiting: Waiting) -> None:
    """The timer may last for hours, and what a config changed may be tens of megabytes."""
    waiter = waiting.waiter(pb.ModelOutcome.ADDED)
    waiting.waiters.add(waiter, waiting.clock.now() + 3600.0)
    left = weakref.ref(waiter)
    del waiter
    assert left() is not None
    waiting.waiters.abandon(Unavailable("over"))
    assert len(waiting.told) == 1
    assert left() is None
    waiting.clock.advance(3600.0)
    waiting.loop.run_due()
    assert len(waiting.told) == 1


def test_a_change_is_told_when_the_version_answers_not_when_it_is_loaded(
    waiting: Waiting,
) -> None:
    """Between the two a command would say that a rollback that worked did not."""
    loaded = ServableState(ServableId("m", 1), ManagerState.AVAILABLE)
    waiting.look = ModelLook((loaded,), at_hand=(1, 2), primary=1, answers=2)
    waiting.waiters.add(waiting.waiter(), None)
    waiting.waiters.tell()
    assert waiting.told == []
    waiting.look = ModelLook((loaded,), at_hand=(1, 2), primary=1, answers=1)
    waiting.waiters.tell()
    assert [outcome.error for outcome in waiting.told] == [None]


LOST = DataLoss("model.pt is damaged")
START, LOADING, AVAILABLE, UNLOADING, END = ManagerState


def state(
    version: int, manager_state: ManagerState, error: DataLoss | None = None
) -> ServableState:
    return ServableState(ServableId("digits", version), manager_state, error)


FAILED = state(2, END, LOST)
BLAME = "{name: digits version: 2} due to error: DATA_LOSS: model.pt is damaged"
SERVES = state(1, AVAILABLE)
FAULTY = replace(SERVES, error=LOST)
CHANGING = replace(SERVES, is_changing=True)
HANGS = replace(state(3, LOADING), note="it hangs", is_late=True)
HANGING = "{name: digits version: 3} does not come to an end: it hangs"


def look(
    *states: ServableState,
    problems: str = "",
    failed: tuple[int, ...] = (2,),
    outlook: bool | None = True,
    at_hand: tuple[int, ...] = (1, 2, 3),
    primary: int | None = None,
    answers: int | None = None,
) -> ModelLook:
    told = (problems,) if problems else ()
    return ModelLook(states, failed, told, at_hand, outlook, primary, answers)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (look(), None),
        (look(problems="/x does not exist", outlook=False), "/x does not exist"),
        (look(problems="it is being written", outlook=None), "it is being written"),
        (look(state(1, LOADING), problems="base path is gone"), None),
        (look(SERVES), ""),
        (look(FAILED, SERVES), ""),
        (look(FAILED, state(1, LOADING)), None),
        (look(FAILED), BLAME),
        (look(FAILED, problems="version 3 is not there"), BLAME),
        (
            look(FAILED, problems="/x does not exist", outlook=False),
            "/x does not exist",
        ),
        # What failed and is not asked for any more says nothing.
        (look(FAILED, failed=()), None),
        (look(state(1, END)), None),
        # What hangs keeps nobody waiting; what unloads is no matter.
        (look(HANGS), HANGING),
        (look(state(2, START), HANGS), None),
        (look(SERVES, HANGS), ""),
        (look(FAILED, replace(state(1, UNLOADING), is_late=True)), BLAME),
    ],
)
def test_a_model_settles_when_nothing_more_can_happen(
    seen: ModelLook, expected: str | None
) -> None:
    """One available version is success; failure is when nothing is moving any more."""
    assert failure_of(seen) == expected


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (look(SERVES), ""),
        (look(SERVES, state(2, START)), None),
        (look(SERVES, state(2, LOADING)), None),
        (look(SERVES, state(2, UNLOADING)), ""),
        (look(CHANGING), None),
        (look(replace(CHANGING, is_late=True)), ""),
        (look(FAULTY, failed=(1,)), BLAME.replace("2", "1")),
        (look(FAILED, SERVES), BLAME),
        (look(FAILED, SERVES, failed=()), ""),
        # What serves from before hides no wrong base path.
        (look(SERVES, problems="version 3 is being written"), ""),
        (look(SERVES, problems="version 3 is being written", outlook=None), None),
        (
            look(SERVES, problems="/x does not exist", outlook=False),
            "/x does not exist",
        ),
    ],
)
def test_a_change_is_over_when_nothing_more_comes_of_it(
    seen: ModelLook, expected: str | None
) -> None:
    """What was served before says nothing of a change; what fails of it is told."""
    assert failure_of(seen, is_changed=True) == expected
    assert failure_of(seen, is_changed=True, is_current=False) is None


def test_what_is_not_taken_in_yet_says_nothing() -> None:
    """An old failure is an answer only once the config has had its effect."""
    for seen in (look(FAILED), look(problems="no version", outlook=False)):
        assert failure_of(seen, is_current=False) is None
    assert failure_of(look(FAILED, SERVES), is_current=False) == ""


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (look(SERVES, state(2, AVAILABLE)), None),
        (look(SERVES, state(2, LOADING)), None),
        (look(SERVES), None),
        (
            look(SERVES, problems="version 2 is no version"),
            "is not loaded: version 2 is no version",
        ),
        (look(SERVES, at_hand=(1,)), "is not under the base path"),
        (look(SERVES, FAILED), f"failed: {LOST}"),
        (
            look(SERVES, replace(HANGS, id=ServableId("digits", 2))),
            "does not come to an end: it hangs",
        ),
    ],
)
def test_a_primary_that_does_not_answer_says_why(
    seen: ModelLook, expected: str | None
) -> None:
    """A wait for a primary says why it does not answer, and what answers instead."""
    said = failure_of(replace(seen, primary=2, answers=1))
    if expected is None:
        assert said is None
    else:
        assert said == (
            f"version 2, which is to be the primary, {expected}; "
            "version 1 answers meanwhile"
        )
    assert failure_of(replace(seen, primary=2, answers=2)) == ""


def test_a_model_on_demand_has_settled_while_nobody_asks() -> None:
    """It answers: its first request loads it."""
    assert failure_of(replace(look(), is_on_demand=True)) == ""
    loading = replace(look(state(1, LOADING)), is_on_demand=True)
    assert failure_of(loading) is None
    assert failure_of(replace(look(), is_on_demand=True), is_current=False) is None


def test_failures_are_listed_as_upstream_does() -> None:
    """The message counts the models and says of each what went wrong."""
    error = error_of({"a": "bad", "b": "", "c": "worse"})
    assert str(error) == (
        "UNKNOWN: 2 model(s) did not become available: {{bad}, {worse}, }"
    )
    assert error_of({"digits": ""}) is None


class World:
    """A loop whose rounds a test runs; a look takes 5 ms."""

    def __init__(self, executor: Executor | None = None) -> None:
        self.clock = FakeClock()
        self.loop = FakeLoop(self.clock)
        self.recheck = Recheck(
            self.look,
            self.follow,
            executor or InlineExecutor(),
            self.loop,
            self.clock,
        )
        self.num_looks = 0
        self.num_followed = 0

    def look(self) -> None:
        self.num_looks += 1
        self.clock.advance(0.005)

    def follow(self) -> None:
        self.num_followed += 1


def test_one_look_follows_all_changes_of_a_round() -> None:
    """Asking again before the look adds nothing; asking after it does."""
    world = World()
    for _ in range(3):
        world.recheck.ask()
    world.loop.run_posted()
    assert world.num_looks == 1
    world.clock.advance(1)
    world.recheck.ask()
    world.loop.run_posted()
    assert world.num_looks == 2


def test_a_look_that_took_long_is_followed_by_a_rest() -> None:
    """The next one comes when ten times as long has passed, once, and not before."""
    world = World()
    world.recheck.ask()
    world.loop.run_posted()
    ended_s = world.clock.now()
    world.recheck.ask()
    world.recheck.ask()
    assert world.loop.num_posted == 0
    ((at_s, _),) = world.loop.timers
    assert abs(at_s - (ended_s + 0.05)) < 1e-6
    world.clock.advance(0.0501)
    world.loop.run_due()
    assert world.num_looks == 2
    world.clock.advance(1)
    world.recheck.ask()
    world.loop.run_posted()
    assert world.num_looks == 3


def test_a_look_is_taken_off_the_loop_and_what_follows_on_it() -> None:
    """A look, which may take a second, is off the loop; what follows is on it."""
    executor = HeldExecutor()
    world = World(executor)
    world.recheck.ask()
    world.loop.run_posted()
    assert world.num_looks == 0
    executor.run_held()
    assert (world.num_looks, world.num_followed) == (1, 0)
    world.loop.run_posted()
    assert world.num_followed == 1


def test_what_changes_during_a_look_is_looked_at_after_it() -> None:
    """A change during a look causes another look after it, never one beside it."""
    executor = HeldExecutor()
    world = World(executor)
    world.recheck.ask()
    world.loop.run_posted()
    (begun,) = executor.held
    executor.held.clear()
    world.recheck._is_posted = False  # the look has begun
    world.recheck.ask()
    world.loop.run_posted()
    assert executor.held == []
    begun()
    world.loop.run_posted()
    world.clock.advance(1)
    world.loop.run_due()
    executor.run_held()
    world.loop.run_posted()
    assert world.num_looks == 2
    assert world.num_followed == 2


def test_an_executor_that_ends_takes_no_look() -> None:
    """The server ends then: nobody is left to be told."""
    executor = HeldExecutor()
    executor.close()
    world = World(executor)
    world.recheck.ask()
    world.loop.run_posted()
    assert world.num_looks == 0
