"""Rows of policy tables: versions as "3 READY f", the answer as "UNLOAD 3"."""

from __future__ import annotations

from managers.loader_harness import HarnessSnapshot, HarnessState
from managers.version_policy.action import Action
from tfs.core.servable_id import ServableId


def versions(text: str) -> list[HarnessSnapshot]:
    """Reads "1 READY f, 2 NEW t": version, state, aspired; "1b" is a reload of 1."""
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
            )
        )
    return rows


def answer(action: Action | None) -> str:
    """Writes "LOAD 5", "LOAD 5b" for a reload, or "none"."""
    if action is None:
        return "none"
    mark = "b" if action.generation >= 100 else ""
    return f"{action.kind.name} {action.id.version}{mark}"
