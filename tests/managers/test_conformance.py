"""Every manager keeps what :class:`tfs.core.servable_handle.Manager` promises."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from managers.caching_manager import CachingManager
from managers.static_manager import StaticManagerBuilder
from managers.versions.version import LoaderData
from tests.core.conformance import TARGET_CHECKS, TargetCheck, check_name
from tests.core.conformance.manager import (
    MANAGER_CHECKS,
    NAME,
    UNLOADING_MANAGER_CHECKS,
    ManagerCheck,
    ManagerUnderTest,
    UnloadingManagerCheck,
    UnloadingManagerUnderTest,
)
from tests.managers.environment import POOLS, Environment, Pools, executor
from tfs.core.errors import NotFound
from tfs.core.servable_handle import Manager
from tfs.core.servable_id import ServableId
from tfs.core.servable_request import ServableRequest
from tfs.core.source import ServableData, Target
from tfs.testing.fake_clock import FakeClock
from tfs.testing.fake_loader import FakeLoader

IDS = (ServableId(NAME, 1), ServableId(NAME, 2))


class Aspired:
    """The manager that follows sources."""

    def __init__(self, pools: Pools) -> None:
        self._environment = Environment(pools)
        self.manager: Manager[object] = self._environment.manager
        self._loaders = {each: FakeLoader(each) for each in IDS}
        self._environment.aspire(NAME, *self._loaders.values())
        self._environment.settle()

    def withdraw(self, servable_id: ServableId) -> None:
        kept = [loader for loader in self._loaders.values() if loader.id != servable_id]
        self._environment.aspire(NAME, *kept)
        self._environment.step()

    def destroyed_on(self, servable_id: ServableId) -> threading.Thread | None:
        self._environment.settle()
        return self._loaders[servable_id].unload_thread

    def close(self) -> None:
        assert self._environment.close()


class Caching:
    """The manager that loads what is asked for."""

    def __init__(self, pools: Pools) -> None:
        clock = FakeClock()
        self._caching = CachingManager(
            self,
            clock=clock,
            load_executor=executor(pools.num_load, "load", clock),
            unload_executor=executor(pools.num_unload, "unload", clock),
        )
        self._clock = clock
        self.manager: Manager[object] = self._caching
        for servable_id in IDS:
            self._caching.acquire(_specific(servable_id)).release()

    def make(self, servable_id: ServableId) -> LoaderData:
        if servable_id.name != NAME:
            missing = NotFound(f"no servable {servable_id.name}")
            return ServableData(servable_id, None, missing)
        return ServableData(servable_id, FakeLoader(servable_id))

    def latest_version(self, name: str) -> int:
        if name != NAME:
            raise NotFound(f"no servable {name}")
        return 2

    def earliest_version(self, name: str) -> int:
        self.latest_version(name)
        return 1

    def close(self) -> None:
        assert self._caching.close(self._clock.now() + 1.0)


class Static:
    """The manager of what never changes."""

    def __init__(self, _: Pools) -> None:
        builder = StaticManagerBuilder()
        for servable_id in IDS:
            builder.add(servable_id, object())
        self.manager: Manager[object] = builder.build()

    def close(self) -> None:
        pass


MANAGERS: tuple[Callable[[Pools], ManagerUnderTest], ...] = (
    Aspired,
    Caching,
    Static,
)
UNLOADING: tuple[Callable[[Pools], UnloadingManagerUnderTest], ...] = (Aspired,)


@pytest.mark.parametrize("pools", POOLS, ids=str)
@pytest.mark.parametrize("make", MANAGERS)
@pytest.mark.parametrize("check", MANAGER_CHECKS, ids=check_name)
def test_our_managers_keep_the_promises(
    check: ManagerCheck, make: Callable[[Pools], ManagerUnderTest], pools: Pools
) -> None:
    """Whoever requests servables need not know what keeps them loaded."""
    check(lambda: make(pools))


@pytest.mark.parametrize("pools", POOLS, ids=str)
@pytest.mark.parametrize("make", UNLOADING)
@pytest.mark.parametrize("check", UNLOADING_MANAGER_CHECKS, ids=check_name)
def test_our_managers_let_go_as_promised(
    check: UnloadingManagerCheck,
    make: Callable[[Pools], UnloadingManagerUnderTest],
    pools: Pools,
) -> None:
    """A version goes once nobody uses it, and never on a request's thread."""
    check(lambda: make(pools))


@pytest.mark.parametrize("pools", POOLS, ids=str)
@pytest.mark.parametrize("check", TARGET_CHECKS, ids=check_name)
def test_the_aspired_versions_manager_is_a_target(
    check: TargetCheck, pools: Pools
) -> None:
    """Sources may call from several threads, and after it was closed."""

    def make() -> tuple[Target[object], Callable[[], object]]:
        environment = Environment(pools)
        # The checks aspire objects that are no loaders; nobody steps before closing.
        target: Target[object] = environment.manager  # type: ignore[assignment]
        return target, environment.close

    check(make)


def _specific(servable_id: ServableId) -> ServableRequest:
    return ServableRequest.specific(servable_id.name, servable_id.version)
