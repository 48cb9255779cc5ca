"""Unloads the old version first, so that old and new are never both in memory.

The price is availability: between the two nothing serves. It is for models of which two
do not fit into memory. If the new version fails for good, the old one comes back.
(TensorFlow Serving: core/resource_preserving_policy.h.)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from managers.version_policy.action import (
    Action,
    age,
    aspired_new,
    load,
    unload,
    without_needed,
)
from managers.versions.harness_state import END_STATES, HarnessSnapshot, HarnessState


def resource_preserving(versions: Sequence[HarnessSnapshot]) -> list[Action]:
    """Unloads everything that is not aspired, waits until it is gone, then loads.

    1. READY versions that are not aspired are unloaded, lowest first. The last of them
       goes on serving, however, while everything aspired is in ERROR.
    2. While any version that is not aspired is neither DISABLED nor in ERROR,
       nothing is done.
    3. Otherwise aspired NEW versions are loaded, highest first.
    4. If everything aspired is in ERROR, what was unloaded for it is loaded again.
    5. If all heirs of a version are in ERROR, it takes the place of one of them, whatever
       else serves: it stays, or is loaded again, highest first. New contents of a
       version count as its heir.

    What callers need is not unloaded, and counts for nothing here.
    """
    versions = without_needed(versions)
    failed = {v.id.version for v in versions if v.is_aspired} - {
        v.id.version
        for v in versions
        if v.is_aspired and v.state is not HarnessState.ERROR
    }
    unaspired = [v for v in versions if not v.is_aspired]
    if not failed or not unaspired:
        return _unload_first(versions)
    orphans = [v for v in unaspired if _is_orphan(v, failed)]
    serving = [v for v in orphans if v.state is HarnessState.READY]
    serving = sorted(serving, key=age, reverse=True)[: len(failed)]
    kept = {v.generation for v in serving}
    plan = _unload_first(
        [replace(v, is_aspired=True) if v.generation in kept else v for v in versions]
    )
    # If everything failed, the latest version comes back by rule 4, which need not be the
    # one that callers mean.
    returning = {v.generation for v in unaspired if v.may_return}
    is_for_return = all(action.generation in returning for action in plan)
    former = [v for v in orphans if v.may_return]
    is_busy = any(
        v.state not in END_STATES for v in unaspired if v.generation not in kept
    )
    if not is_for_return or len(kept) >= len(failed) or is_busy or not former:
        return plan
    chosen = max(former, key=age)
    return [load(chosen, _stands_in_for(_heirs_of(chosen, failed)))]


def _unload_first(versions: Sequence[HarnessSnapshot]) -> list[Action]:
    """Rules 1 to 4."""
    unaspired = [v for v in versions if not v.is_aspired]
    stale = [v for v in unaspired if v.state is HarnessState.READY]
    aspired = [v for v in versions if v.is_aspired]
    if stale and _have_all_failed(aspired):
        stale.remove(max(stale, key=age))
        why = "what is aspired failed, and one version serves meanwhile"
        return [unload(v, why) for v in sorted(stale, key=age)]
    if stale:
        return [unload(v, "unloads come before loads") for v in sorted(stale, key=age)]
    if any(v.state not in END_STATES for v in unaspired):
        return []
    loads = [load(v, "aspired; nothing else is loaded") for v in aspired_new(versions)]
    if loads or not _have_all_failed(aspired):
        return loads
    former = [v for v in unaspired if v.may_return]
    why = _stands_in_for([max(aspired, key=age).id.version])
    return [load(max(former, key=age), why)] if former else []


def _heirs_of(version: HarnessSnapshot, failed: Collection[int]) -> Collection[int]:
    number = version.id.version
    return version.heirs or ([number] if number in failed else ())


def _is_orphan(version: HarnessSnapshot, failed: set[int]) -> bool:
    heirs = _heirs_of(version, failed)
    return bool(heirs) and failed.issuperset(heirs)


def _stands_in_for(failed: Collection[int]) -> str:
    listed = ", ".join(map(str, sorted(failed)))
    return f"version {listed} failed, for which it was unloaded; it serves meanwhile"


def _have_all_failed(aspired: Sequence[HarnessSnapshot]) -> bool:
    return bool(aspired) and all(v.state is HarnessState.ERROR for v in aspired)
