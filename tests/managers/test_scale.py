"""A thousand models: what a step costs depends on what changed, not on what is there.

The bounds are generous, and on processor time, because other things run beside tests;
`make bench-core` has the figures.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from managers.aspired_versions_manager import AspiredVersionsManagerOptions
from managers.transition_policy import Action, availability_preserving
from managers.versions.harness_state import HarnessSnapshot
from tests.managers.environment import POOLS, Environment

NUM_MODELS = 1000


def test_thousand_models_come_up_and_swap_in_seconds() -> None:
    """1,000 fake models available, and a wave of 1,000 swaps, without polling."""
    env = Environment(POOLS[3])
    names = [f"model{index}" for index in range(NUM_MODELS)]
    for version in (1, 2):
        started_s = time.process_time()
        for name in names:
            env.aspire(name, version)
        env.settle()
        spent_s = time.process_time() - started_s
        print(f"version {version} of {NUM_MODELS} models: {spent_s:.2f} s")
        assert spent_s < 20.0
        ids = env.manager.list_available_ids()
        assert {i.version for i in ids} == {version}
        assert len(ids) == NUM_MODELS
    assert env.log.max_num_resident[names[0]] == 2


def test_step_asks_only_the_policies_of_what_changed() -> None:
    """One swap among many servables costs one servable's decisions."""
    asked: list[str] = []

    def policy(versions: Sequence[HarnessSnapshot]) -> Sequence[Action]:
        asked.append(versions[0].id.name)
        return availability_preserving(versions)

    env = Environment(
        POOLS[0], options=AspiredVersionsManagerOptions(policy, release_memory=None)
    )
    for index in range(50):
        env.aspire(f"model{index}", 1)
    env.settle()
    asked.clear()
    env.aspire("model7", 2)
    env.settle()
    assert set(asked) == {"model7"}
