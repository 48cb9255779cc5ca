"""A manager whose versions have to share a limit of memory."""

from __future__ import annotations

from collections.abc import Callable

from managers.loading.load_admission import ResourceTracker
from managers.transition_policy import resource_preserving
from tests.managers.environment import POOLS, Environment
from tfs.core.errors import (
    DataLoss,
)
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest
from tfs.testing.fake_loader import FakeLoader


def test_load_that_waits_for_memory_goes_on_when_there_is_room() -> None:
    """A step that makes room also decides the loads that waited for it."""
    for pools in POOLS:
        env = Environment(pools, tracker=ResourceTracker.ram(10))
        env.aspire("big", env.loader("big", 1, ram_bytes=10))
        env.settle()
        handle = env.manager.acquire(ServableRequest.latest("big"))
        env.aspire("big")
        env.settle()
        env.aspire("small", env.loader("small", 1, ram_bytes=5))
        env.settle()
        assert env.available("small") == ()
        handle.release()
        env.settle()
        assert env.available("small") == (1,)


def test_what_took_more_than_there_was_is_loaded_once_there_is_room() -> None:
    """By then its real size is known; another loader loads it, as each loads only once."""
    for pools in POOLS:
        env = Environment(pools, tracker=ResourceTracker.ram(10))
        env.aspire("a", env.loader("a", 1, ram_bytes=4))
        env.settle()
        large = env.loader("b", 1, ram_bytes=1, loaded_bytes=8)
        env.aspire("b", large)
        env.settle()
        assert env.available("b") == ()
        assert env.log.resident == [ServableId("a", 1)]
        env.aspire("c", env.loader("c", 1, ram_bytes=5))
        env.settle()
        env.aspire("c")
        env.settle()
        assert env.available("b") == ()
        env.aspire("a")
        env.settle()
        assert env.available("b") == (1,)
        assert large.num_loads == large.num_unloads == 1


def test_what_takes_a_little_more_than_expected_stays() -> None:
    """With a limit as tight as the status says, either every swap succeeds or none does."""
    for pools in POOLS:
        env = Environment(pools, tracker=ResourceTracker.ram(1000))
        env.aspire("a", env.loader("a", 1, ram_bytes=500, loaded_bytes=501))
        env.aspire("b", env.loader("b", 1, ram_bytes=480, loaded_bytes=510))
        env.settle()
        assert env.available("a") == env.available("b") == (1,)


class Gone(FakeLoader):
    """Of a version whose files went since."""

    @property
    def make_another(self) -> Callable[[], FakeLoader]:
        """What raises why there is none."""

        def make() -> FakeLoader:
            raise DataLoss("its files are gone")

        return make


def test_what_cannot_be_tried_again_holds_up_nobody() -> None:
    """Later versions of the same servable are planned and loaded."""
    for pools in POOLS:
        env = Environment(pools, tracker=ResourceTracker.ram(10))
        env.aspire("a", env.loader("a", 1, ram_bytes=4))
        env.settle()
        env.aspire(
            "b", Gone(ServableId("b", 1), ram_bytes=1, loaded_bytes=8, log=env.log)
        )
        env.settle()
        env.aspire("a")
        env.settle()
        assert env.available("b") == ()
        env.aspire("b", env.loader("b", 2, ram_bytes=1))
        env.settle()
        assert env.available("b") == (2,)


def test_what_went_for_a_version_that_takes_too_much_comes_back() -> None:
    """If the new version takes too much, the old one, which fitted, serves again."""
    for pools in POOLS:
        env = Environment(pools, tracker=ResourceTracker.ram(10))
        env.manager.set_transition_policy("m", resource_preserving)
        env.aspire("m", env.loader("m", 1, ram_bytes=6))
        env.settle()
        env.aspire("m", env.loader("m", 2, ram_bytes=1, loaded_bytes=11))
        env.settle()
        assert env.available("m") == (1,)
