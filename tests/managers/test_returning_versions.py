"""Versions that were unloaded for others, and come back where those fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from managers.aspired_versions_manager import AspiredVersionsManagerOptions
from managers.loading.load_admission import ResourceTracker
from managers.transition_policy import resource_preserving
from managers.versions.version import RetryOptions
from tests.managers.environment import NO_RETRY, POOLS, Environment, Pools, saving
from tests.managers.transition_policy.tables import meaning
from tests.present import present
from tfs.core.errors import (
    Code,
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)
from tfs.core.servable_id import ServableId
from tfs.core.servable_state import ManagerState
from tfs.testing.sequencer import Sequencer


@pytest.mark.parametrize("pools", POOLS, ids=str)
def test_what_was_unloaded_for_a_version_that_fails_comes_back(pools: Pools) -> None:
    """Unloading first causes a gap but does not end the service; two are never loaded."""
    env = saving(pools)
    before = len(env.events())
    for number in (2, 3):
        bad = env.loader("m", number, errors=[InvalidArgument("corrupt")])
        env.aspire("m", bad)
        env.settle()
        assert env.available("m") == (1,)
    assert env.log.max_num_resident["m"] == 1
    assert [str(env.error("m", number)) for number in (3, 2, 1)] == [
        "INVALID_ARGUMENT: corrupt",
        "INVALID_ARGUMENT: corrupt",
        "None",
    ]
    state = present(env.monitor.state(ServableId("m", 1)))
    assert state.reason == (
        "version 3 failed, for which it was unloaded; it serves meanwhile"
    )
    assert env.events()[before:][:9] == [
        ("m/2", "START"),
        ("m/1", "UNLOADING"),
        ("m/1", "END"),
        ("m/2", "LOADING"),
        ("m/2", "END"),
        ("m/1", "START"),
        ("m/1", "LOADING"),
        ("m/1", "AVAILABLE"),
        ("m/3", "START"),
    ]
    env.aspire("m", 4)
    env.settle()
    assert env.available("m") == (4,)
    assert env.log.max_num_resident["m"] == 1


@pytest.mark.parametrize("pools", POOLS, ids=str)
def test_nothing_goes_for_a_version_that_is_seen_to_be_damaged(pools: Pools) -> None:
    """Damage that shows without loading the version causes no gap."""
    env = saving(pools)
    before = len(env.events())
    env.aspire("m", env.loader("m", 2, estimate_errors=[DataLoss("cut off")]))
    env.settle()
    assert env.events()[before:] == [("m/2", "START"), ("m/2", "END")]
    assert str(env.error("m", 2)) == "DATA_LOSS: cut off"
    assert env.available("m") == (1,)
    # What may pass by itself is the load's to find out.
    env.aspire("m", env.loader("m", 3, estimate_errors=[Unavailable("busy")]))
    env.settle()
    assert env.available("m") == (3,)
    assert env.log.max_num_resident["m"] == 1


def test_what_fails_to_come_back_is_not_tried_for_ever() -> None:
    """If the stand-in is gone from the disk, it ends with an error and is not retried."""
    env = Environment(POOLS[0])
    env.manager.set_transition_policy("m", resource_preserving)
    env.aspire("m", env.loader("m", 1, errors=[None, InvalidArgument("gone")]))
    env.settle()
    env.aspire("m", env.loader("m", 2, errors=[InvalidArgument("corrupt")]))
    env.settle()
    assert env.available("m") == ()
    assert str(env.error("m", 1)) == "INVALID_ARGUMENT: gone"
    assert env.log.count("load", ServableId("m", 1)) == 2
    # Another that fails is another occasion.
    env.aspire("m", env.loader("m", 2, errors=[InvalidArgument("corrupt")]))
    env.settle()
    assert env.available("m") == (1,)


@pytest.mark.parametrize("pools", POOLS, ids=str)
def test_a_version_that_failed_is_tried_again_by_request(pools: Pools) -> None:
    """A failed version is tried again with all retries; healthy ones are left alone."""
    env = Environment(
        pools,
        options=AspiredVersionsManagerOptions(retry=NO_RETRY, release_memory=None),
    )
    env.aspire("m", 1)
    env.settle()
    env.aspire("m", env.loader("m", 2, errors=[InvalidArgument("no service")]))
    env.settle()
    before = len(env.events())
    assert env.manager.failed_versions("m") == {2}
    env.manager.try_again("m", {1, 2, 9})
    assert not env.manager.has_taken_in_all
    env.settle()
    assert env.manager.has_taken_in_all
    assert env.available("m") == (2,)
    assert env.events()[before:] == [
        ("m/2", "START"),
        ("m/2", "LOADING"),
        ("m/2", "AVAILABLE"),
        ("m/1", "UNLOADING"),
        ("m/1", "END"),
    ]
    state = present(env.monitor.state(ServableId("m", 2)))
    assert "tried again by request" in state.reason
    assert env.manager.failed_versions("m") == frozenset()


def test_a_pause_between_attempts_ends_by_request() -> None:
    """Once the fault is mended, nobody has to wait a minute for the next attempt."""
    env = patient()
    env.aspire("n", env.loader("n", 1, errors=[Unavailable("busy")]))
    env.settle()
    assert env.manager.failed_versions("n") == {1}
    env.manager.try_again("n", {1})
    env.settle()
    assert env.available("n") == (1,)
    env.aspire("m", env.loader("m", 2, errors=[Unavailable("busy")]))
    env.settle()
    assert env.available("m") == (1,)  # stands in until the next attempt
    env.manager.try_again("m", {2})
    env.settle()
    assert env.available("m") == (2,)
    env.clock.advance(100.0)
    env.settle()
    assert env.log.count("load", ServableId("m", 2)) == 2


def test_a_version_that_serves_with_a_fault_is_loaded_anew_by_request() -> None:
    """Crashes may have been another's fault; the old one serves until the new one can."""
    env = Environment(POOLS[0])
    env.aspire("m", 1)
    env.settle()
    env.manager.report_servable_error(
        ServableId("m", 1), FailedPrecondition("quarantined")
    )
    assert env.manager.failed_versions("m") == {1}
    env.manager.try_again("m", {1})
    env.settle()
    assert env.available("m") == (1,)
    assert env.error("m", 1) is None
    assert env.log.count("load", ServableId("m", 1)) == 2
    assert env.log.count("unload", ServableId("m", 1)) == 1
    env.aspire("m", 1)
    env.settle()
    assert env.log.count("load", ServableId("m", 1)) == 2


def patient(pools: Pools = POOLS[0]) -> Environment:
    """Returns a manager that unloads m/1 for others, and tries those again as a server does."""
    env = Environment(
        pools,
        options=AspiredVersionsManagerOptions(
            retry=RetryOptions(max_num_retries=2), release_memory=None
        ),
    )
    env.manager.set_transition_policy("m", resource_preserving)
    env.aspire("m", 1)
    env.settle()
    return env


@pytest.mark.parametrize("pools", POOLS, ids=str)
def test_a_version_that_may_mend_stands_back_between_its_attempts(pools: Pools) -> None:
    """An attempt takes away what serves, so that returns at once and attempts are rare."""
    env = patient(pools)
    newest = ServableId("m", 2)
    env.aspire("m", env.loader("m", 2, errors=[Unavailable("busy")] * 2))
    env.settle()
    assert env.available("m") == (1,)  # no pause without anything that serves
    assert str(env.error("m", 2)) == "UNAVAILABLE: busy"
    status = present(env.manager.load_status(newest))
    assert status.next_attempt_s == env.clock.now() + 60.0
    env.clock.advance(59.0)
    env.settle()
    assert env.log.count("load", newest) == 1
    env.clock.advance(1.0)
    env.settle()
    assert env.log.count("load", newest) == 2
    assert env.available("m") == (1,)
    status = present(env.manager.load_status(newest))
    assert (status.num_failures, status.next_attempt_s) == (2, env.clock.now() + 120.0)
    env.clock.advance(120.0)
    env.settle()
    assert env.available("m") == (2,)
    assert env.error("m", 2) is None
    assert env.log.max_num_resident["m"] == 1


def test_a_version_that_does_not_mend_is_given_up_after_its_retries() -> None:
    """The serving version is unloaded for it as often as the flag says, and no more."""
    env = patient()
    env.aspire("m", env.loader("m", 2, errors=[Unavailable("busy")] * 9))
    for _ in range(50):
        env.settle()
        env.clock.advance(60.0)
    assert env.available("m") == (1,)
    assert env.log.count("load", ServableId("m", 2)) == 3
    assert present(env.manager.load_status(ServableId("m", 2))).next_attempt_s is None


def test_what_stands_back_for_nothing_is_tried_again_soon() -> None:
    """If the old version cannot come back either, another attempt takes nothing away."""
    env = Environment(
        POOLS[0],
        options=AspiredVersionsManagerOptions(release_memory=None),
    )
    env.manager.set_transition_policy("m", resource_preserving)
    env.aspire("m", env.loader("m", 1, errors=[None, DataLoss("gone")]))
    env.settle()
    env.aspire("m", env.loader("m", 2, errors=[Unavailable("busy")]))
    assert env.settle() == env.clock.now() + 1.0
    env.clock.advance(1.0)
    env.settle()
    assert env.available("m") == (2,)


def test_a_first_version_has_nothing_to_stand_back_for() -> None:
    """It is tried again after seconds, because nothing else could serve."""
    env = patient()
    env.aspire("n", env.loader("n", 1, errors=[Unavailable("busy")]))
    env.manager.set_transition_policy("n", resource_preserving)
    assert env.settle() == env.clock.now() + 1.0
    assert env.state("n", 1) is ManagerState.LOADING
    env.clock.advance(1.0)
    env.settle()
    assert env.available("n") == (1,)


def test_who_is_no_longer_wanted_is_not_tried_again() -> None:
    """A planned attempt is dropped if another version is aspired or the manager closes."""
    for wanted in ([3], [1], []):
        env = patient()
        env.aspire("m", env.loader("m", 2, errors=[Unavailable("busy")]))
        env.settle()
        env.aspire("m", *wanted)
        env.settle()
        env.clock.advance(100.0)
        env.settle()
        assert env.available("m") == tuple(wanted)
        assert env.log.count("load", ServableId("m", 2)) == 1


def test_what_stands_in_makes_way_while_it_loads() -> None:
    """A new version, or closing, need not wait for a version that only stands in."""
    for wanted in ([3], []):
        env = Environment(POOLS[3])
        env.manager.set_transition_policy("m", resource_preserving)
        sequencer = Sequencer()
        points = iter(("first", "again"))
        sequencer.open("first")

        def load(points: Iterator[str] = points, at: Sequencer = sequencer) -> None:
            at.reach(next(points))

        env.aspire("m", env.loader("m", 1, on_load=load))
        env.settle()
        env.aspire("m", env.loader("m", 2, errors=[InvalidArgument("corrupt")]))
        while not sequencer.num_reached("again"):
            env.manager.step()
        env.aspire("m", *wanted)
        env.manager.step()
        sequencer.open("again")
        env.settle()
        assert env.available("m") == tuple(wanted)
        assert env.log.max_num_resident["m"] == 1
        assert present(env.error("m", 1)).code is Code.CANCELLED


@pytest.mark.parametrize("pools", POOLS, ids=str)
def test_what_callers_were_told_comes_back_though_another_version_serves(
    pools: Pools,
) -> None:
    """Two versions are aspired, and the one that was to replace it failed."""
    env = Environment(pools)
    heirs: dict[int, list[int]] = {}
    env.manager.set_transition_policy(
        "m", lambda versions: resource_preserving(meaning(versions, heirs))
    )
    env.aspire("m", 1)
    env.settle()
    heirs[1] = [3]
    bad = env.loader("m", 3, errors=[InvalidArgument("corrupt")])
    env.aspire("m", 2, bad)
    env.settle()
    assert env.available("m") == (1, 2)
    heirs[1] = [4]
    env.aspire("m", 2, 4)
    env.settle()
    assert env.available("m") == (2, 4)
    assert env.log.max_num_resident["m"] == 2


def test_what_comes_back_is_what_went_last() -> None:
    """An earlier failure beside a version that served brings nothing back."""
    env = saving()
    old = env.loader("m", 3, errors=[InvalidArgument("corrupt")])
    env.aspire("m", 2, old)
    env.settle()
    assert env.available("m") == (2,)
    env.aspire("m", old, env.loader("m", 4, errors=[InvalidArgument("corrupt")]))
    env.settle()
    assert env.available("m") == (2,)


def test_what_is_to_stand_in_makes_way_for_what_fits_at_last() -> None:
    """Otherwise they would wait for each other: one for memory, the other for its place."""
    tracker = ResourceTracker.ram(10)
    env = Environment(
        POOLS[0],
        options=AspiredVersionsManagerOptions(
            retry=RetryOptions(max_num_retries=1, interval_s=1.0), release_memory=None
        ),
        tracker=tracker,
    )
    env.manager.set_transition_policy("m", resource_preserving)
    errors = [None, Unavailable("the archive does not answer")]
    env.aspire("m", env.loader("m", 1, ram_bytes=5, estimate_errors=errors))
    env.aspire("other", env.loader("other", 1, ram_bytes=3))
    env.settle()
    env.aspire("m", env.loader("m", 2, ram_bytes=5, loaded_bytes=9))
    env.settle()
    assert isinstance(env.error("m", 2), ResourceExhausted)
    assert env.available("m") == ()  # the old one is asked again what it takes
    env.aspire("other")
    env.settle()
    env.clock.advance(1.0)
    env.settle()
    assert env.available("m") == (2,)
    assert env.log.max_num_resident["m"] == 1
    assert env.close()
    assert tracker.used.describe() == "nothing"
