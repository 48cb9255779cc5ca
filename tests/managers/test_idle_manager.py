"""What a manager says of its own work: that it disturbs nobody, waits or is idle."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from managers.aspired_versions_manager import AspiredVersionsManagerOptions
from managers.transition_policy import Action, availability_preserving
from managers.versions.harness_state import HarnessSnapshot
from tests.managers.environment import POOLS, Environment
from tfs.core.system.limits import num_processors
from tfs.testing.sequencer import Sequencer


def test_loads_disturb_nobody_while_nothing_can_be_requested(
    empty: Environment,
) -> None:
    """While nothing can be requested, loads need not make way for requests."""
    manager, found = empty.manager, list[bool]()
    assert manager.disturbs_nobody
    loaders = [
        empty.loader("A", v, on_load=lambda: found.append(manager.disturbs_nobody))
        for v in (1, 2)
    ]
    for loader in loaders:
        empty.aspire("A", loader)
        empty.settle()
    assert found == [True, False]
    empty.aspire("A")
    empty.settle()
    assert manager.disturbs_nobody
    with manager.lend_all_threads():
        assert manager.disturbs_nobody


def test_lent_threads_come_back() -> None:
    """lend_all_threads enlarges the load pool and then restores it."""
    env = Environment(POOLS[1])
    sequencer = Sequencer()
    num_lent = 4 * num_processors()
    with env.manager.lend_all_threads():
        assert env.executors[0].num_threads == num_lent
        for index in range(num_lent):
            name = f"M{index}"
            env.aspire(
                name, env.loader(name, 1, on_load=lambda: sequencer.reach("load"))
            )
        env.manager.step()
        sequencer.wait_reached("load", num_lent)
        sequencer.open("load")
    assert env.executors[0].num_threads == 2
    env.settle()
    assert len(env.manager.list_available_ids()) == num_lent


def test_waiting_loads_and_idleness_are_told() -> None:
    """Measuring is put off while loads wait; idle means that nothing moves."""
    env = Environment(POOLS[1])
    sequencer = Sequencer()
    assert env.manager.is_idle
    for index in range(5):
        name = f"M{index}"
        env.aspire(name, env.loader(name, 1, on_load=lambda: sequencer.reach("load")))
    assert not env.manager.is_idle
    env.manager.step()
    sequencer.wait_reached("load", 2)
    assert env.manager.num_waiting_loads == 3
    assert not env.manager.is_idle
    sequencer.open("load")
    env.settle()
    assert env.manager.num_waiting_loads == 0
    assert env.manager.is_idle


def test_what_a_step_moves_on_is_not_idle() -> None:
    """The manager is not idle between taking in news and acting on it."""
    sequencer = Sequencer()

    def policy(versions: Sequence[HarnessSnapshot]) -> Sequence[Action]:
        sequencer.reach("decision")
        return availability_preserving(versions)

    env = Environment(
        POOLS[-1], options=AspiredVersionsManagerOptions(transition_policy=policy)
    )
    env.aspire("M", env.loader("M", 1, on_load=lambda: sequencer.reach("load")))
    told: list[bool] = []
    stepping = threading.Thread(target=env.manager.step)
    asking = threading.Thread(target=lambda: told.append(env.manager.is_idle))
    stepping.start()
    sequencer.wait_reached("decision")
    asking.start()
    asking.join(0.05)  # a wrong answer comes at once
    sequencer.open("decision")
    stepping.join(30)
    asking.join(30)
    assert told == [False]
    sequencer.open("load")
    env.settle()
    assert env.manager.is_idle
