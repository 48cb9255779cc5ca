"""Brings a version back if the one that was to replace it failed, whatever else serves.

A policy that unloads first brings back what it unloaded if everything aspired has
failed, because nothing would serve otherwise. But if several versions are aspired,
those that serve do not answer for the one that failed: callers may ask for it by a
label, as the primary, or by number. This wraps a policy with that knowledge.
``handing_over`` is the counterpart for policies that load first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from managers.harness_snapshot import HarnessSnapshot
from managers.harness_state import END_STATES, HarnessState
from managers.version_policy.action import Action, TransitionPolicy, age, load
from managers.version_policy.handing_over import Awaited


def standing_in(policy: TransitionPolicy, awaited: Awaited) -> TransitionPolicy:
    """Returns ``policy`` changed so that it brings back versions whose heirs all failed.

    1. A version that serves although no source aspires it is shown to ``policy`` as
       aspired: it takes the place of one that failed.
    2. A version that was unloaded is loaded again, highest first, when ``policy`` has
       nothing to do but to bring back another, and no other version that is not aspired
       is on its way.

    There are never more of these than versions that failed, because each takes the
    place of one. New contents of a version count as its heir, too.

    Args:
        policy: Decides about all others.
        awaited: Tells which versions have other heirs, including versions that are
            unloaded.

    """

    def decide(versions: Sequence[HarnessSnapshot]) -> Sequence[Action]:
        failed = {v.id.version for v in versions if v.is_aspired} - {
            v.id.version
            for v in versions
            if v.is_aspired and v.state is not HarnessState.ERROR
        }
        if not failed or all(v.is_aspired for v in versions):
            return policy(versions)
        heirs = awaited()

        def heirs_of(version: HarnessSnapshot) -> Collection[int]:
            number = version.id.version
            return heirs.get(number) or ([number] if number in failed else ())

        def is_orphan(version: HarnessSnapshot) -> bool:
            mine = heirs_of(version)
            return bool(mine) and failed.issuperset(mine)

        unaspired = [v for v in versions if not v.is_aspired]
        orphans = [v for v in unaspired if is_orphan(v)]
        serving = [v for v in orphans if v.state is HarnessState.READY]
        serving = sorted(serving, key=age, reverse=True)[: len(failed)]
        kept = {v.generation for v in serving}
        plan = policy(
            [
                replace(v, is_aspired=True) if v.generation in kept else v
                for v in versions
            ]
        )
        returning = {v.generation for v in unaspired if v.may_return}
        # If everything failed, the policy brings back the latest version, which need not
        # be the one that callers mean.
        is_for_return = all(action.generation in returning for action in plan)
        if not is_for_return or len(kept) >= len(failed):
            return plan
        former = [v for v in orphans if v.may_return]
        is_busy = any(
            v.state not in END_STATES for v in unaspired if v.generation not in kept
        )
        if is_busy or not former:
            return plan
        chosen = max(former, key=age)
        mine = ", ".join(map(str, sorted(heirs_of(chosen))))
        why = f"version {mine} failed, for which it was unloaded; it serves meanwhile"
        return [load(chosen, why)]

    return decide
