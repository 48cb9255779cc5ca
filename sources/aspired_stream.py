"""Decides what a source tells its target after a listing, and keeps what it told.

:func:`decide` is pure, and tested by a table. The stream of a servable keeps what was listed
and what was aspired: it takes a listing and returns the versions to emit now, if any.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from sources.agenda import Look
from sources.listing import Listing, Remembered, SeenVersion
from sources.servable_to_monitor import ServableToMonitor, StoragePath
from sources.version_policy import Specific, list_versions
from tfs.core.source import AspiredVersions, ServableData

log = logging.getLogger(__name__)

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
    pinned = list_versions(sorted(servable.pinned | servable.labelled))
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


# Seconds after which everything is emitted again. This repairs missed calls and retries
# failed conversions.
_REPEAT_S: Final = 30.0


@dataclass(slots=True)
class AspiredStream:
    """One servable, as its source sees it. Confined to its source's turn.

    Attributes:
        servable: The servable as it is configured.
        at_hand: The versions that the last listing showed, lowest first; None before any.
        problems: What is wrong with its base path.
        is_late: Whether it was reported that its base path does not answer.
        outlook: Whether the last listing found a version to serve; None if there may
            still be one, because it was not listed as it is configured now, or something
            settles.
        look: The listings of its base path.

    """

    servable: ServableToMonitor
    at_hand: tuple[int, ...] | None = None
    problems: tuple[str, ...] = ()
    is_late: bool = False
    outlook: bool | None = None
    look: Look | None = None
    _seen: Mapping[str, SeenVersion] = field(default_factory=dict)
    _emitted: Versions | None = None  # None before anything was emitted
    _emitted_s: float = 0.0
    _is_new: bool = True  # not yet listed under this configuration
    _is_unreadable: bool = False  # the last listing that ended could read nothing

    @property
    def is_awaited(self) -> bool:
        """Whether a listing by another thread is under way and not late."""
        look = self.look
        return look is not None and look.is_open and not self.is_late

    @property
    def remembered(self) -> Remembered:
        """What the next listing has to know."""
        aspired = frozenset(data.id.version for data in self._emitted or ())
        return Remembered(self._seen, aspired, self.at_hand)

    def configure(self, servable: ServableToMonitor) -> None:
        """Takes in another configuration; what was emitted stays valid."""
        if servable == self.servable:
            return
        if servable.base_path != self.servable.base_path:
            self._seen, self.at_hand = {}, None
        self.servable = servable
        self.outlook = None
        self._is_new = True

    def take(
        self, found: Listing, now_s: float, *, unload_when_empty: bool
    ) -> AspiredVersions[StoragePath] | None:
        """Takes in a listing of the servable as it is configured.

        Returns:
            The versions to emit now, which then count as emitted; None for nothing.

        """
        self.is_late = False
        self._is_unreadable = not found.is_readable
        self.outlook = bool(found.versions)
        problems = found.problems
        if not found.is_readable:
            # Nothing is known, so nothing changes; a storage outage unloads nothing.
            aspired = self._none_found(problems[0], now_s)
        else:
            must_repeat = self.look is not None and self.look.must_repeat
            if not found.versions and found.settled_at_s is not None:
                self.outlook = None
            decision = decide(
                self.servable,
                self._emitted,
                found,
                known=self.at_hand,
                is_new=self._is_new,
                repeat=must_repeat or now_s - self._emitted_s >= _REPEAT_S,
                unload_when_empty=unload_when_empty,
            )
            aspired = decision.aspired
            if aspired is not None:
                self._note_emitted(aspired, now_s)
            problems = found.problems + decision.problems
            self._seen, self.at_hand = found.seen, found.at_hand
            self._is_new = False
        for problem in problems:
            if problem not in self.problems:
                self._log_problem(problem)
        self.problems = problems
        return aspired

    def give_up_waiting(self, now_s: float) -> AspiredVersions[StoragePath] | None:
        """Notes, once for each configuration, if its base path does not answer.

        Returns as ``take``.
        """
        call = None if self.look is None else self.look.call
        if call is None or not call.is_late:
            return None
        if self.is_late and self.outlook is not None:
            return None
        self.is_late = True
        self.outlook = False
        servable = self.servable
        problem = (
            f"base path {servable.base_path} of {servable.name} has not answered "
            f"for {call.limit_s:g} s; it is looked at again as soon as it does"
        )
        if self._is_unreadable and self.problems:
            problem = self.problems[0]  # it says more, and is not new
        elif problem not in self.problems:
            self._log_problem(problem)
        self.problems = (problem,)
        return self._none_found(problem, now_s)

    def _none_found(
        self, problem: str, now_s: float
    ) -> AspiredVersions[StoragePath] | None:
        """Returns what to emit of a base path that cannot be read; None for nothing."""
        if self._emitted is not None:
            return None
        aspired: AspiredVersions[StoragePath] = AspiredVersions(
            self.servable.name, (), problem
        )
        self._note_emitted(aspired, now_s)
        return aspired

    def _note_emitted(
        self, aspired: AspiredVersions[StoragePath], now_s: float
    ) -> None:
        if aspired.versions != self._emitted:
            log.info(
                "event=aspired servable=%s versions=%s reason=%r",
                aspired.name,
                list_versions([data.id.version for data in aspired.versions]) or "none",
                aspired.reason,
            )
        self._emitted = aspired.versions
        self._emitted_s = now_s
        if self.look is not None:
            self.look.must_repeat = False

    def _log_problem(self, problem: str) -> None:
        log.warning(
            "event=source_problem servable=%s problem=%s", self.servable.name, problem
        )
