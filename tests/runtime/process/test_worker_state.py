from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from tfs.runtime.process.worker_state import TRANSITIONS, WorkerState, transition


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


def test_the_documented_table_is_the_one_that_holds() -> None:
    """docs/runtime.md lists every state, and where it leads."""
    page = Path(__file__).resolve().parents[3] / "docs" / "runtime.md"
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \|([^|]*)\|$", page.read_text(), re.M)
    documented = {
        state: set(re.findall(r"`(\w+)`", moves))
        for state, moves in rows
        if state in {each.value for each in WorkerState}
    }
    assert documented == {
        state.value: {to.value for to in moves} for state, moves in TRANSITIONS.items()
    }
