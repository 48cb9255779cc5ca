"""Decides what a source tells its target after a listing. Pure, and tested by a table."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from sources.listing import Listing
from sources.servable_to_monitor import ServableToMonitor, StoragePath
from sources.version_policy import Specific, list_versions
from tfs.core.servable_data import AspiredVersions, ServableData

Versions = tuple[ServableData[StoragePath], ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows from one listing.

    Attributes:
        aspired: The versions to tell the target; None if there is nothing to tell.
        problems: What was refused, for status and log.

    """

    aspired: AspiredVersions[StoragePath] | None
    problems: tuple[str, ...] = ()


def decide(
    servable: ServableToMonitor,
    before: Versions | None,
    found: Listing,
    *,
    known: Collection[int] | None = None,
    is_new: bool = False,
    repeat: bool = False,
    unload_when_empty: bool = False,
) -> Decision:
    """Decides what to tell the target.

    Args:
        servable: The servable as configured.
        before: The versions told last; None if none were.
        found: What was found.
        known: Versions that the listing before showed; None if it is not known.
        is_new: Whether the configuration changed since the last listing.
        repeat: Whether to tell the same again.
        unload_when_empty: Whether the last version may be unloaded because no version
            is left.

    """
    if not found.versions and before and not _may_empty(servable, unload_when_empty):
        problem = (
            f"{servable.base_path} shows no version of {servable.name} to serve; "
            "what is loaded stays (unload_when_empty is off)"
        )
        return Decision(None, (problem,))
    kept = _kept_though_gone(servable, before or (), found, unload_when_empty)
    problems = tuple(
        f"version {data.id.version} of {servable.name} is not to be had from "
        f"{servable.base_path}; what is loaded of it stays, because it is pinned"
        for data in kept
    )
    if kept:
        found = replace(found, versions=found.versions + kept)
    if found.versions == before and not repeat:
        return Decision(None, problems)
    what = explain(before, found, is_new, known)
    pinned = list_versions(sorted(servable.pinned))
    wanted = f"{servable.policy} and pinned {pinned}" if pinned else servable.policy
    reason = f"{wanted} of {servable.base_path}: {what}"
    return Decision(AspiredVersions(servable.name, found.versions, reason), problems)


def explain(
    before: Versions | None,
    found: Listing,
    is_new: bool,
    known: Collection[int] | None = None,
) -> str:
    """Returns what changed, for people: "2 appeared", "1 gone, 2 appeared"."""
    chosen = _numbers(found.versions)
    # It was not looked at, or nothing was found.
    if before is None or (is_new and not before):
        return f"found {list_versions(chosen)}" if chosen else "no version"
    old = _numbers(before)
    parts = []
    if is_new:
        parts.append("configuration changed")
    at_hand = frozenset(found.at_hand)
    gone = [version for version in old if version not in at_hand]
    if gone:
        parts.append(f"{list_versions(gone)} gone")
    told = frozenset(old)
    new = [version for version in chosen if version not in told]
    if parts:  # versions that were there before keep that reason
        lay_there = None if known is None else frozenset(known)
        new = [v for v in new if lay_there is not None and v not in lay_there]
    if new:
        parts.append(f"{list_versions(new)} appeared")
    overwritten = [version for version in found.overwritten if version in told]
    if overwritten:
        parts.append(f"{list_versions(overwritten)} overwritten in place")
    replaced = [
        new.id.version
        for new, told in zip(found.versions, before, strict=False)
        if chosen == old and new != told
    ]
    if not parts and replaced:  # by another directory, or by another payload
        parts.append(f"{list_versions(replaced)} replaced")
    if not parts:
        parts.append("unchanged" if chosen == old else "different versions ready")
    return ", ".join(parts)


def _kept_though_gone(
    servable: ServableToMonitor,
    before: Versions,
    found: Listing,
    unload_when_empty: bool,
) -> Versions:
    """Returns pinned versions that were aspired and are no longer found ready.

    A rollback holds until it is ended. Deleting old versions or moving the base path
    must neither bring back the version that was rolled back, nor leave nothing to
    answer.
    """
    if unload_when_empty and not found.at_hand:
        return ()
    ready = frozenset(_numbers(found.versions))
    return tuple(
        data
        for data in before
        if data.id.version in servable.pinned
        and data.id.version not in ready
        and data.payload is not None
    )


def _may_empty(servable: ServableToMonitor, unload_when_empty: bool) -> bool:
    # A policy with an empty list of versions asks for none; it is no accident of the
    # file system.
    by_wish = servable.policy == Specific(()) and not servable.pinned
    return unload_when_empty or by_wish


def _numbers(versions: Versions) -> list[int]:
    return [data.id.version for data in versions]
