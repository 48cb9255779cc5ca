"""No task is lost and none ends twice, whatever happens at once."""

from __future__ import annotations

import pytest

from tests.batching.chaos import run_chaos


@pytest.mark.parametrize("seed", range(8))
def test_every_task_ends_exactly_once(seed: int) -> None:
    """Cancels, deadlines, failures, retries, splits, removals: all at once."""
    ledger = run_chaos(seed, 2000)
    assert ledger.num_ended == ledger.num_submitted
    assert ledger.num_twice == 0
    assert ledger.kinds["done"] > 200
    assert len(ledger.kinds) >= 5


@pytest.mark.stress
@pytest.mark.timeout(900)
def test_a_million_tasks_end_exactly_once() -> None:
    """The same for as long as it takes to meet what is rare."""
    total = 0
    for seed in range(1000, 1100):
        ledger = run_chaos(seed, 10_000)
        assert ledger.num_ended == ledger.num_submitted
        assert ledger.num_twice == 0
        total += ledger.num_ended
    assert total >= 1_000_000
