"""What a retrier has loaded again, and when."""

from __future__ import annotations

import pytest

from managers.loading.version_executor import VersionExecutor
from managers.steps.retrier import Retrier
from managers.versions.harness_state import HarnessState
from managers.versions.retry import RetryOptions
from managers.versions.version_table import VersionTable
from tfs.core.errors import Unavailable
from tfs.core.executor import InlineExecutor
from tfs.core.servable_id import ServableId
from tfs.core.source import ServableData
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_loader import FakeLoader

ID = ServableId("a", 1)
RETRY = RetryOptions(max_num_retries=3, interval_s=1.0)


class RenewableLoader(FakeLoader):
    """A loader of a version that loads at the second attempt."""

    def make_another(self) -> FakeLoader:
        return FakeLoader(self.id)


class Stage:
    """A version that failed to load once, and stood back for what served before it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.table = VersionTable(None, self.clock, RETRY)
        executor = VersionExecutor(
            self.table, InlineExecutor(), InlineExecutor(), self.clock
        )
        loader = RenewableLoader(ID, errors=[Unavailable("busy")])
        self.table.manage(ServableData(ID, loader))
        executor.load(ID)
        self.retrier = Retrier(self.table, executor, RETRY, self.clock)
        (version,) = self.table.snapshots("a")
        assert version.is_pausing
        self.retrier.stand_back(version)

    def state(self) -> HarnessState:
        (version,) = self.table.stream("a")
        return version.state

    def wait(self) -> float:
        """Lets the pause pass; returns how long it was."""
        next_s = self.retrier.next_s()
        assert next_s is not None
        pause_s = next_s - self.clock.now()
        self.clock.advance(pause_s)
        return pause_s


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_load_that_stood_back_begins_anew_after_a_long_pause(stage: Stage) -> None:
    """It has ended until then, so that the old version may return."""
    assert stage.state() is HarnessState.ERROR
    stage.retrier.try_due(is_closing=False)
    assert stage.state() is HarnessState.ERROR
    assert stage.wait() == RETRY.long_pause_s(1, Unavailable(""))
    stage.retrier.try_due(is_closing=False)
    assert stage.state() is HarnessState.NEW
    assert stage.retrier.next_s() is None


def test_a_load_that_stood_back_in_vain_pauses_as_usual(stage: Stage) -> None:
    """Where no old version could return, nothing is gained by a long pause."""
    stage.retrier.hurry("a", stage.table.snapshots("a"))
    assert stage.wait() == RETRY.pause_s(1, Unavailable(""))


def test_a_manager_that_closes_tries_nothing_again(stage: Stage) -> None:
    """What was due is dropped, or the manager would be called again and again."""
    stage.wait()
    stage.retrier.try_due(is_closing=True)
    assert (stage.state(), stage.retrier.next_s()) == (HarnessState.ERROR, None)


def test_a_request_does_not_wait_for_the_pause(stage: Stage) -> None:
    """Only versions that the request names are tried."""
    stage.retrier.try_now("a", {2})
    assert stage.state() is HarnessState.ERROR
    stage.retrier.try_now("a", {1})
    assert stage.state() is HarnessState.NEW
