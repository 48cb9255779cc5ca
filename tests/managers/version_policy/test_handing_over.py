"""What still answers for others stays until they can."""

from __future__ import annotations

import pytest

from managers.version_policy.availability_preserving import availability_preserving
from managers.version_policy.handing_over import handing_over
from tests.managers.version_policy.tables import answer, versions

CASES = {
    "nothing is awaited": ("1 READY f, 2 NEW t, 3 READY t", {}, "UNLOAD 1"),
    "its heir is to be loaded": ("1 READY f, 2 NEW t, 3 READY t", {1: [2]}, "LOAD 2"),
    "its heir loads": ("1 READY f, 2 LOADING t, 3 READY t", {1: [2]}, "none"),
    "its heir failed": ("1 READY f, 2 ERROR t, 3 READY t", {1: [2]}, "none"),
    "one of its heirs loads": (
        "1 READY f, 2 LOADING t, 3 READY t",
        {1: [3, 2]},
        "none",
    ),
    "its heir serves": ("1 READY f, 2 READY t, 3 READY t", {1: [2]}, "UNLOAD 1"),
    "nobody aspires its heir": ("1 READY f, 3 READY t", {1: [2]}, "UNLOAD 1"),
    "its heir goes": ("1 READY f, 2 UNLOADING f, 3 READY t", {1: [2]}, "UNLOAD 1"),
    "another one has no heir": (
        "1 READY f, 2 LOADING t, 3 READY t, 4 READY f",
        {1: [2]},
        "UNLOAD 4",
    ),
    "it is aspired itself": ("1 READY t, 2 NEW t", {1: [2]}, "LOAD 2"),
    "it has not begun": ("1 NEW f, 2 NEW t", {1: [2]}, "LOAD 2"),
}


@pytest.mark.parametrize(
    ("state", "heirs", "expected"), CASES.values(), ids=CASES.keys()
)
def test_a_version_stays_while_its_heirs_are_on_their_way(
    state: str, heirs: dict[int, list[int]], expected: str
) -> None:
    """Whatever else serves: callers are told the old one until then."""
    policy = handing_over(availability_preserving, lambda: heirs)
    assert answer(policy(versions(state))) == expected


def test_a_version_that_is_wanted_again_soon_stays() -> None:
    """The source has not heard of the configuration that pins it."""
    wanted = {1}
    policy = handing_over(availability_preserving, dict, wanted.__contains__)
    assert answer(policy(versions("1 READY f, 3 READY t"))) == "none"
    assert answer(policy(versions("2 READY f, 3 READY t"))) == "UNLOAD 2"
    wanted.clear()
    assert answer(policy(versions("1 READY f, 3 READY t"))) == "UNLOAD 1"
