"""Versions that fail, one after the other: what served before is never lost."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from managers.aspired_versions_manager import AspiredVersionsManagerOptions
from managers.loading.load_admission import ResourceTracker
from managers.transition_policy import Action, resource_preserving
from managers.versions.harness_state import HarnessSnapshot
from managers.versions.version import RetryOptions
from tests.managers.environment import POOLS, Environment, Pools
from tests.managers.transition_policy.tables import meaning
from tfs.core.errors import DataLoss, InvalidArgument, Unavailable
from tfs.testing.fake_loader import FakeLoader

LIMIT_BYTES = 100
RETRY = RetryOptions(max_num_retries=1, interval_s=1.0)


class Deployments:
    """Versions of one servable, most of them bad, each aspired alone."""

    def __init__(self, pools: Pools, rng: random.Random) -> None:
        self.rng = rng
        self.newest = 0
        limited = ResourceTracker.ram(LIMIT_BYTES) if rng.random() < 0.5 else None
        self.env = Environment(
            pools,
            options=AspiredVersionsManagerOptions(retry=RETRY, release_memory=None),
            tracker=limited,
        )
        self.env.manager.set_transition_policy("m", resource_preserving)

    def deploy(self, what: str, *beside: FakeLoader) -> int:
        """Aspires a version, often a new one, beside others; returns its number."""
        again = self.newest > 0 and self.rng.random() < 0.3
        version = self.rng.randint(1, self.newest) if again else self.newest + 1
        self.newest = max(self.newest, version)
        self.env.aspire("m", *beside, self._loader(version, what))
        return version

    def settle(self) -> None:
        """Lets everything happen, retries included."""
        for _ in range(4):
            self.env.settle()
            self.env.clock.advance(4.0)
        self.env.settle()

    def _loader(self, version: int, what: str) -> FakeLoader:
        make = self.env.loader
        match what:
            case "damaged":
                return make("m", version, errors=[InvalidArgument("damaged")] * 9)
            case "cut off":
                return make("m", version, estimate_errors=[DataLoss("cut off")] * 9)
            case "unreachable":
                return make("m", version, errors=[Unavailable("later")] * 9)
            case "large":
                return make("m", version, ram_bytes=LIMIT_BYTES + 1, errors=LARGE)
            case _:
                return make("m", version, ram_bytes=10)


LARGE = [InvalidArgument("too large")] * 9  # where there is no limit, it fails later
BAD = ("damaged", "cut off", "unreachable", "large")


@pytest.mark.parametrize("pools", [POOLS[0], POOLS[3]], ids=str)
def test_what_served_comes_back_however_many_versions_fail(pools: Pools) -> None:
    """Never two are loaded, and never none that could be, for whatever reason they fail."""
    for seed in range(60 if pools is POOLS[0] else 6):
        deployments = Deployments(pools, random.Random(seed))
        env, rng = deployments.env, deployments.rng
        deployments.deploy("good")
        deployments.settle()
        for _ in range(rng.randint(1, 6)):
            what = rng.choice((*BAD, "good"))
            version = deployments.deploy(what)
            if rng.random() < 0.8:  # else the next one comes before anything happens
                deployments.settle()
                available = env.available("m")
                assert available == (version,) if what == "good" else available, seed
        assert env.log.max_num_resident["m"] == 1
        assert env.close()
        assert env.log.resident == []


class Callers:
    """Which version callers are answered by, and which is to take its place."""

    def __init__(self) -> None:
        self.told = self.meant = 1

    def heirs(self) -> dict[int, list[int]]:
        return {} if self.told == self.meant else {self.told: [self.meant]}


@pytest.mark.parametrize("pools", [POOLS[0], POOLS[3]], ids=str)
def test_what_callers_were_told_comes_back_beside_what_serves(pools: Pools) -> None:
    """A good version is always aspired beside the one that callers mean; both stay."""
    for seed in range(40 if pools is POOLS[0] else 4):
        deployments, callers = Deployments(pools, random.Random(seed)), Callers()
        env, rng = deployments.env, deployments.rng

        def policy(
            versions: Sequence[HarnessSnapshot], callers: Callers = callers
        ) -> Sequence[Action]:
            return resource_preserving(meaning(versions, callers.heirs()))

        env.manager.set_transition_policy("m", policy)
        beside = env.loader("m", 0, ram_bytes=10)
        for what in ("good", *(rng.choice((*BAD, "good")) for _ in range(5))):
            callers.meant = deployments.deploy(what, beside)
            if rng.random() < 0.8 or callers.meant == 1:
                deployments.settle()
                callers.told = callers.meant if what == "good" else callers.told
                assert env.available("m") == (0, callers.told), (seed, what)
        assert env.log.max_num_resident["m"] <= 2
        assert env.close()
        assert env.log.resident == []
