"""Memory under random wishes: what fits is loaded, what does not waits for no one."""

from __future__ import annotations

import random

import pytest

from managers.aspired_versions_manager import AspiredVersionsManagerOptions
from managers.loading.memory import ResourceTracker
from managers.transition_policy import resource_preserving
from managers.versions.harness_state import HarnessState
from tests.managers.environment import NO_RETRY, POOLS, Environment, Pools
from tfs.core.errors import ResourceExhausted, Unavailable
from tfs.core.resources import MAIN, RAM_BYTES, Resource
from tfs.testing.fake_loader import FakeLoader

LIMIT_BYTES = 100
RAM = Resource(MAIN, RAM_BYTES, 0)


class Wishes:
    """Sources that aspire at random, over a manager with little memory."""

    def __init__(self, pools: Pools, seed: int) -> None:
        self._rng = random.Random(seed)
        self.tracker = ResourceTracker.ram(LIMIT_BYTES)
        self.env = Environment(
            pools,
            options=AspiredVersionsManagerOptions(retry=NO_RETRY, release_memory=None),
            tracker=self.tracker,
        )
        self._aspired: dict[str, list[int]] = {name: [] for name in "abcdef"}
        self._loaders: dict[tuple[str, int], FakeLoader] = {}
        for name in self._aspired:
            if self._rng.random() < 0.5:
                self.env.manager.set_transition_policy(name, resource_preserving)

    def change(self) -> None:
        """Aspires another version, fewer, or none at all."""
        rng, name = self._rng, self._rng.choice("abcdef")
        versions = self._aspired[name]
        what = rng.random()
        if what < 0.6:
            version = len(self._loaders) + 1
            self._loaders[name, version] = self.env.loader(
                name,
                version,
                ram_bytes=rng.choice([5, 10, 20, 40, 60, 90, 110]),
                peak_bytes=rng.choice([0, 0, 5, 20]),
                errors=[Unavailable("busy")] if rng.random() < 0.1 else [],
            )
            versions = [*(versions if rng.random() < 0.2 else []), version]
        else:
            versions = [] if what < 0.8 else versions[:-1]
        self._aspired[name] = versions
        self.env.aspire(name, *(self._loaders[name, version] for version in versions))
        if rng.random() < 0.7:
            self.env.manager.step()

    def check_rest(self) -> None:
        """Lets everything happen; nothing may wait then for what does not come."""
        self.env.settle()
        self.env.settle()
        assert self.env.manager.is_idle
        resident = [
            self._loaders[each.name, each.version] for each in self.env.log.resident
        ]
        used = sum(loader.ram_bytes for loader in resident)
        assert used == self.tracker.used[RAM] <= LIMIT_BYTES
        for name, versions in self._aspired.items():
            snapshots = self.env.manager.snapshots(name)
            for each in snapshots:
                if not each.is_aspired:
                    continue
                assert each.id.version in versions
                assert each.state in (HarnessState.READY, HarnessState.ERROR)
                loader = self._loaders[name, each.id.version]
                if isinstance(each.error, ResourceExhausted):
                    assert used + loader.ram_bytes + loader.peak_bytes > LIMIT_BYTES


@pytest.mark.parametrize("pools", POOLS, ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_what_fits_is_loaded_and_nothing_waits_for_ever(
    pools: Pools, seed: int
) -> None:
    """Refused, deferred and promised loads come to rest, whoever comes and goes."""
    wishes = Wishes(pools, seed)
    for index in range(60):
        wishes.change()
        if index % 6 == 5:
            wishes.check_rest()
    assert wishes.env.close()
    assert wishes.env.log.resident == []
