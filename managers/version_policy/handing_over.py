"""Keeps a version loaded until what takes its place can answer.

A transition policy knows which versions are aspired, not what callers are told: a
version that a label or the primary still means may go as soon as *any* aspired version
serves, though the one that is to be meant next is still loading. This wraps a policy
with that knowledge.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from managers.harness_snapshot import HarnessSnapshot
from managers.harness_state import HarnessState
from managers.version_policy.action import Action, TransitionPolicy

Awaited: TypeAlias = Callable[[], Mapping[int, Collection[int]]]
"""Returns, for each version, the versions that are to take its place; quick, from any
thread."""


def handing_over(
    policy: TransitionPolicy,
    awaited: Awaited,
    is_wanted_soon: Callable[[int], bool] = lambda _: False,
) -> TransitionPolicy:
    """Returns ``policy``, but that it does not see a version with heirs on their way.

    An heir is on its way while it is aspired and not READY; one that failed leaves the
    old version serving. One that nobody aspires holds nothing.

    Args:
        policy: Decides about all others.
        awaited: Which versions have heirs.
        is_wanted_soon: Whether a version will be aspired (again) as soon as the source
            has heard of the configuration; it is kept as well.

    """

    def decide(versions: Sequence[HarnessSnapshot]) -> Sequence[Action]:
        if all(v.is_aspired for v in versions):
            return policy(versions)  # nothing would go
        heirs = awaited()
        coming = {
            v.id.version
            for v in versions
            if v.is_aspired and v.state is not HarnessState.READY
        }

        def is_kept(version: HarnessSnapshot) -> bool:
            number = version.id.version
            return (
                version.state is HarnessState.READY
                and not version.is_aspired
                and (
                    any(heir in coming for heir in heirs.get(number, ()))
                    or is_wanted_soon(number)
                )
            )

        return policy([v for v in versions if not is_kept(v)])

    return decide
