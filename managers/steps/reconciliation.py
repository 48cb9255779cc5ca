"""What must change when a source says what it aspires."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from managers.versions.harness_state import HarnessState
from managers.versions.version import LoaderData, Version
from tfs.core.loader import Loader
from tfs.core.source import AspiredVersions

log = logging.getLogger(__name__)

Aspired: TypeAlias = AspiredVersions[Loader[object]]


@dataclass(slots=True)
class Reconciliation:
    """What to do, in the order of the attributes.

    Attributes:
        wanted_again: Versions that are aspired again; they simply go on serving, or
            loading.
        unaspired: Versions that are no longer aspired, and why.
        given_up: Versions that were not aspired before either, and whose loads are in
            the way.
        new: Versions to be managed, perhaps beside another of the same number.

    """

    wanted_again: list[Version] = field(default_factory=list)
    unaspired: list[tuple[Version, str]] = field(default_factory=list)
    given_up: list[Version] = field(default_factory=list)
    new: list[LoaderData] = field(default_factory=list)


def reconcile(aspired: Aspired, managed: Sequence[Version]) -> Reconciliation:
    """Compares what a source aspires of a servable with what is managed of it.

    A version that is aspired with the loader it has is left alone. If it comes with
    another loader it is replaced: a new one is aspired instead of the old one.

    Args:
        aspired: All versions that should exist; of two with the same number the last
            counts.
        managed: The servable's versions, in the order they were managed; only read.

    """
    wanted: dict[int, LoaderData] = {}
    for data in aspired.versions:
        if data.id.version in wanted:
            log.warning("event=version_aspired_twice servable=%s", data.id.slashed)
        wanted[data.id.version] = data
    result = Reconciliation()
    kept: set[int] = {
        version.id.version
        for version in managed
        if version.is_aspired
        and (data_now := wanted.get(version.id.version)) is not None
        and version.holds(data_now)
    }
    unwanted: list[Version] = []
    for version in managed:
        number = version.id.version
        data_now = wanted.get(number)
        if not version.is_aspired:
            # What its equal replaces stays replaced, or both would stay loaded.
            if data_now and number not in kept and _can_return(version, data_now):
                result.wanted_again.append(version)
                kept.add(number)
            else:
                unwanted.append(version)
        elif data_now is None:
            result.unaspired.append((version, aspired.reason or "no longer aspired"))
        elif not version.holds(data_now):
            why = f"replaced by its new contents; {aspired.reason}"
            result.unaspired.append((version, why))
    if not wanted or wanted.keys() - kept:
        result.given_up = unwanted  # versions that stood in for others
    result.new = [data for number, data in wanted.items() if number not in kept]
    return result


def _can_return(version: Version, data: LoaderData) -> bool:
    """Whether a version that is aspired again can simply go on serving, or loading."""
    is_up = version.state is HarnessState.READY or version.is_coming
    return is_up and version.holds(data)
