"""Contents of a version that newer ones have replaced, as a table."""

from __future__ import annotations

import pytest

from managers.steps.planner import replaced_contents
from tests.managers.transition_policy.tables import versions

CASES = {
    "the newest stays": ("1 READY f, 1b READY f", [1]),
    "a policy decides once newer contents are aspired": ("1 READY f, 1b READY t", []),
    "newer contents that are not loaded replace nothing": (
        "1 READY f, 1b ERROR t",
        [],
    ),
    "each version by itself": ("1 READY f, 2 READY f, 2b READY f", [2]),
    "three of one": ("3 READY f, 3 READY f, 3b READY f", [3, 3]),
    "what is on its way out goes by itself": ("1 UNLOADING f, 1b READY f", []),
    "nothing": ("", []),
}


@pytest.mark.parametrize(("state", "gone"), CASES.values(), ids=CASES.keys())
def test_only_the_newest_loaded_contents_of_a_version_are_kept(
    state: str, gone: list[int]
) -> None:
    """Requests reach no others; those that are aspired are for policies to decide on."""
    found = replaced_contents(versions(state))
    assert [v.id.version for v in found] == gone
    assert all(v.generation < 100 for v in found)
