"""Decides what must change so that what is managed matches what a source aspires."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from managers.basic_manager import LoaderData
from managers.harness_state import HarnessState
from managers.inbox import Aspired
from managers.loader_harness import LoaderHarness

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Reconciliation:
    """What to do, in the order of the attributes.

    Attributes:
        wanted_again: Harnesses that are aspired again; they simply go on serving, or
            loading.
        unaspired: Harnesses that are no longer aspired, and why.
        given_up: Harnesses that were not aspired before either, and whose loads are in
            the way.
        new: Versions to be managed, perhaps beside another harness of the same version.

    """

    wanted_again: list[LoaderHarness] = field(default_factory=list)
    unaspired: list[tuple[LoaderHarness, str]] = field(default_factory=list)
    given_up: list[LoaderHarness] = field(default_factory=list)
    new: list[LoaderData] = field(default_factory=list)


def reconcile(aspired: Aspired, harnesses: Sequence[LoaderHarness]) -> Reconciliation:
    """Compares what a source aspires of a servable with what is managed of it.

    A version that is aspired with the loader it has is left alone. If it comes with
    another loader it is replaced: a new harness is aspired instead of the old one.

    Args:
        aspired: All versions that should exist; of two with the same number the last
            counts.
        harnesses: The servable's harnesses, in the order they were managed; only read.

    """
    wanted: dict[int, LoaderData] = {}
    for data in aspired.versions:
        if data.id.version in wanted:
            log.warning("event=version_aspired_twice servable=%s", data.id.slashed)
        wanted[data.id.version] = data
    result = Reconciliation()
    kept: set[int] = {
        harness.id.version
        for harness in harnesses
        if harness.is_aspired
        and (held := wanted.get(harness.id.version)) is not None
        and harness.holds(held)
    }
    unwanted: list[LoaderHarness] = []
    for harness in harnesses:
        version = harness.id.version
        data_now = wanted.get(version)
        if not harness.is_aspired:
            # What its equal replaces stays replaced, or both would stay loaded.
            if data_now and version not in kept and _can_return(harness, data_now):
                result.wanted_again.append(harness)
                kept.add(version)
            else:
                unwanted.append(harness)
        elif data_now is None:
            result.unaspired.append((harness, aspired.reason or "no longer aspired"))
        elif not harness.holds(data_now):
            why = f"replaced by its new contents; {aspired.reason}"
            result.unaspired.append((harness, why))
    if not wanted or wanted.keys() - kept:
        result.given_up = unwanted  # versions that stood in for others
    result.new = [data for version, data in wanted.items() if version not in kept]
    return result


def _can_return(harness: LoaderHarness, data: LoaderData) -> bool:
    """Whether a version that is aspired again can simply go on serving, or loading."""
    is_up = harness.state is HarnessState.READY or harness.is_coming
    return is_up and harness.holds(data)
