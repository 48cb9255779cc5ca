"""Callers who wait for a config are remembered until they were told."""

from __future__ import annotations

import weakref

import pytest

from tfs.core.errors import Unavailable
from tfs.core.executor import InlineExecutor
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.proto.tfs.v1 import admin_service_pb2 as pb
from tfs.server.config.waiting import ConfigOutcome, ConfigWaiters, ModelLook, Waiter
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_loop import FakeLoop


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
