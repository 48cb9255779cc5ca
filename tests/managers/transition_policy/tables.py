"""Rows of policy tables: versions as "3 READY f", the answer as "UNLOAD 3"."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from hypothesis import strategies as st

from managers.transition_policy import Action, ActionKind, TransitionPolicy
from managers.versions.harness_state import HarnessSnapshot, HarnessState
from tfs.core.servable_id import ServableId


def versions(text: str) -> list[HarnessSnapshot]:
    """Reads "1 READY f, 2 NEW t": version, state, aspired; "1b" is a reload of 1.

    "r" for aspired: it is not, but was unloaded for others and may return.
    """
    rows = []
    for generation, row in enumerate(filter(None, text.split(", "))):
        number, state, aspired = row.split()
        rows.append(
            HarnessSnapshot(
                ServableId("a", int(number.rstrip("b"))),
                HarnessState[state],
                None,
                aspired == "t",
                generation + 100 * number.endswith("b"),
                may_return=aspired == "r",
            )
        )
    return rows


def meaning(
    listed: Sequence[HarnessSnapshot],
    heirs: Mapping[int, Collection[int]],
    needed: Collection[int] = (),
) -> list[HarnessSnapshot]:
    """Returns versions with what callers mean: heirs by version, and what they need."""
    return [
        replace(
            v,
            heirs=frozenset(heirs.get(v.id.version, ())),
            is_needed=v.id.version in needed,
        )
        for v in listed
    ]


def answer(plan: Sequence[Action]) -> str:
    """Writes the first action: "LOAD 5", "LOAD 5b" for a reload, or "none"."""
    if not plan:
        return "none"
    action = plan[0]
    mark = "b" if action.generation >= 100 else ""
    return f"{action.kind.name} {action.id.version}{mark}"


def one_by_one(
    policy: TransitionPolicy, listed: Sequence[HarnessSnapshot]
) -> list[Action]:
    """Returns the first actions that a policy names, each begun before the next."""
    begun = {
        ActionKind.LOAD: HarnessState.LOAD_REQUESTED,
        ActionKind.UNLOAD: HarnessState.UNLOAD_REQUESTED,
    }
    now, actions = list(listed), list[Action]()
    while plan := policy(now):
        action = plan[0]
        actions.append(action)
        now = [
            replace(v, state=begun[action.kind])
            if v.generation == action.generation
            else v
            for v in now
        ]
    return actions


def _snapshot(
    version: int, state: HarnessState, is_aspired: bool, generation: int, gone: bool
) -> HarnessSnapshot:
    may_return = gone and not is_aspired and state is HarnessState.DISABLED
    return HarnessSnapshot(
        ServableId("a", version), state, None, is_aspired, generation, may_return
    )


snapshots = st.lists(
    st.builds(
        _snapshot,
        st.integers(0, 4),
        st.sampled_from(HarnessState),
        st.booleans(),
        st.integers(0, 9),
        st.booleans(),
    ),
    max_size=6,
    unique_by=lambda v: v.generation,
)
"""Any versions of one servable, in any states, for hypothesis."""
