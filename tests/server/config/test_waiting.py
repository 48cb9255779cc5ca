"""Callers who wait for a config are remembered until they were told."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import cast

import pytest

from managers.state_monitor import ServableStateMonitor
from tfs.core.errors import Unavailable
from tfs.core.event_bus import EventBus
from tfs.core.executor import InlineExecutor
from tfs.core.loop.serving_loop import ServingLoop
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState, ServableState
from tfs.server.config.running_config import Change, ModelChange
from tfs.server.config.waiting import ConfigOutcome, ConfigWaiters, Waiter
from tfs.server.model_sources import ModelSources
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_loop import FakeLoop


def test_who_was_told_is_not_kept_until_the_deadline() -> None:
    """The timer may last for hours, and what a config changed may be tens of megabytes."""
    clock = FakeClock()
    bus: EventBus[ServableState] = EventBus(clock)
    loop = ServingLoop(clock)
    waiters = ConfigWaiters(
        ServableStateMonitor(bus),
        cast(ModelSources, SimpleNamespace(source=SimpleNamespace(problems=dict))),
        lambda: True,
        clock,
        loop,
        InlineExecutor(),
        lambda name: (None, None),
    )
    told: list[ConfigOutcome] = []
    waiter = Waiter(
        told.append,
        frozenset({"m"}),
        (ModelChange("m", Change.ADDED),),
        frozenset(),
        is_base=True,
    )
    waiters.add(waiter, clock.now() + 3600.0)
    loop.step()  # the timer is set
    left = weakref.ref(waiter)
    del waiter
    assert left() is not None
    waiters.abandon(Unavailable("over"))
    assert len(told) == 1
    assert left() is None
    clock.advance(3600.0)
    loop.step()
    assert not loop.num_failures
    assert len(told) == 1
    loop.close()


@pytest.mark.parametrize("version", [None, 1])
def test_a_change_is_told_when_the_version_answers_not_when_it_is_loaded(
    version: int | None,
) -> None:
    """Between the two a command would say that a rollback that worked did not."""
    clock = FakeClock()
    bus: EventBus[ServableState] = EventBus(clock)
    source = SimpleNamespace(problems=dict, at_hand=lambda _: (1, 2))
    answers = 2
    waiters = ConfigWaiters(
        ServableStateMonitor(bus),
        cast(ModelSources, SimpleNamespace(source=source)),
        lambda: True,
        clock,
        FakeLoop(clock),
        InlineExecutor(),
        lambda name: (1, answers),
    )
    told: list[ConfigOutcome] = []
    names = frozenset({"m"})
    changes = (ModelChange("m", Change.CHANGED),)
    waiter = Waiter(
        told.append, names, changes, frozenset(), is_base=False, version=version
    )
    waiters.add(waiter, None)
    bus.publish(ServableState(ServableId("m", 1), ManagerState.AVAILABLE))
    waiters.tell()
    assert told == []
    answers = 1
    waiters.tell()
    assert [outcome.error for outcome in told] == [None]
