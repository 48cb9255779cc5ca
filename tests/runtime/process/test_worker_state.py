from __future__ import annotations

import itertools

import pytest

from tfs.runtime.process.worker import TRANSITIONS, WorkerState, transition


@pytest.mark.parametrize(
    ("state", "to"), list(itertools.product(WorkerState, WorkerState))
)
def test_only_the_moves_of_the_table_are_made(
    state: WorkerState, to: WorkerState
) -> None:
    """Every pair of states: allowed moves move, the others raise."""
    if to in TRANSITIONS[state]:
        assert transition("w", state, to) is to
    else:
        with pytest.raises(AssertionError, match=f"from {state.value} to {to.value}"):
            transition("w", state, to)


@pytest.mark.parametrize("state", list(WorkerState))
def test_closing_is_always_possible_and_final(state: WorkerState) -> None:
    """Every state but the last leads to the last."""
    assert (WorkerState.CLOSED in TRANSITIONS[state]) is (
        state is not WorkerState.CLOSED
    )
