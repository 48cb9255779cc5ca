"""Keeps a version loaded until the one that takes its place can answer.

A transition policy knows which versions are aspired, but not which ones callers use. It
may unload a version that a label or the primary still refers to as soon as *any*
aspired version serves, although the one it will refer to next is still loading. This
wraps a policy with that knowledge.
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
    """Returns ``policy`` changed so that it keeps versions whose heirs are on their way.

    An heir is on its way while it is aspired and not READY; if it failed, the old
    version goes on serving. An heir that nobody aspires keeps nothing loaded.

    Args:
        policy: Decides about all others.
        awaited: Tells which versions have heirs.
        is_wanted_soon: Tells whether a version will be aspired (again) once the source
            has read the new configuration; such a version is kept too.

    """

    def decide(versions: Sequence[HarnessSnapshot]) -> Sequence[Action]:
        if all(v.is_aspired for v in versions):
            return policy(versions)  # nothing would be unloaded
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
