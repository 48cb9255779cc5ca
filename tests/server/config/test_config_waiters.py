"""Callers who wait for a config are remembered until they were told."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import cast

from managers.state_monitor import ServableStateMonitor
from tfs.core.errors import Unavailable
from tfs.core.event_bus import EventBus
from tfs.core.executor import InlineExecutor
from tfs.core.servable_state import ServableState
from tfs.core.serving_loop import ServingLoop
from tfs.server.config.config_outcome import ConfigOutcome
from tfs.server.config.config_waiters import ConfigWaiters, Waiter
from tfs.server.config.running_config import Change, ModelChange
from tfs.server.model_sources import ModelSources
from tfs.testing.fake_clock import FakeClock


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
