"""What a source remembers of one servable: what it saw, and what it emitted.

The record takes the result of a look and returns the versions to emit now, if any.
:func:`sources.decision.decide` decides which, given what was emitted before.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sources.decision import Versions, decide
from sources.distant_look import DistantLook
from sources.file_system_options import FileSystemSourceOptions
from sources.look import Look, take_look
from sources.scan import Sighting
from sources.servable_to_monitor import ServableToMonitor
from sources.storage import FileSystem
from sources.storage_path import StoragePath
from sources.version_policy import list_versions
from tfs.core.clock import Clock
from tfs.core.servable_data import AspiredVersions
from tfs.core.servable_id import ServableId

log = logging.getLogger(__name__)

# Seconds after which everything is emitted again. This repairs missed calls and retries
# failed conversions.
_REPEAT_S: Final = 30.0


@dataclass(slots=True)
class ServableRecord:
    """What is known of a servable, and what was emitted. Confined to its source's turn.

    Attributes:
        servable: The servable as it is configured.
        at_hand: The versions that the last look showed, lowest first; None before any.
        problems: What is wrong with its base path.
        is_watched: Whether events tell what changes below its base path.
        is_late: Whether it was reported that its base path does not answer.
        outlook: Whether the last look found a version to serve; None if there may still
            be one, because it was not looked at as it is configured now, or something
            settles.
        distant: Takes the looks while the base path may not answer; None if it never
            lay in such a place.
        must_repeat: Whether the versions were asked to be emitted again.

    """

    servable: ServableToMonitor
    at_hand: tuple[int, ...] | None = None
    problems: tuple[str, ...] = ()
    is_watched: bool = False
    is_late: bool = False
    outlook: bool | None = None
    distant: DistantLook[Look] | None = None
    must_repeat: bool = False
    _sightings: Mapping[str, Sighting] = field(default_factory=dict)
    _said: Versions | None = None  # None before anything was emitted
    _said_s: float = 0.0
    _is_new: bool = True  # not yet looked at under this configuration
    _is_unreadable: bool = False  # the last look that ended could read nothing

    @property
    def is_awaited(self) -> bool:
        """Whether a look by another thread is under way and not late."""
        return self.distant is not None and self.distant.is_open and not self.is_late

    def configure(self, servable: ServableToMonitor) -> None:
        """Takes in another configuration; what was emitted stays valid."""
        if servable == self.servable:
            return
        if servable.base_path != self.servable.base_path:
            self._sightings, self.at_hand = {}, None
        self.servable = servable
        self.outlook = None
        self._is_new = True

    def next_look(
        self,
        file_system: FileSystem,
        options: FileSystemSourceOptions,
        clock: Clock,
        has_failed: Callable[[ServableId], bool],
    ) -> Callable[[], Look]:
        """Returns a function that looks, on any thread; it does not use the record."""
        return functools.partial(
            take_look,
            file_system,
            self.servable,
            self._sightings,
            [data.id.version for data in self._said or ()],
            self.at_hand,
            options,
            clock,
            has_failed,
        )

    def take(
        self,
        look: Look,
        now_s: float,
        *,
        unload_when_empty: bool,
    ) -> AspiredVersions[StoragePath] | None:
        """Takes in the result of a look.

        Args:
            look: A look at the servable as it is configured.
            now_s: The time, by the clock.
            unload_when_empty: See the source's options.

        Returns:
            The versions to emit now, which then count as emitted; None for nothing.

        """
        self.is_late = False
        found, problems = look.found, look.problems
        aspired: AspiredVersions[StoragePath] | None = None
        self.outlook = _outlook(look)
        self._is_unreadable = found is None
        if found is None:
            # Nothing is known, so nothing changes; a storage outage unloads nothing.
            aspired = self._say_nothing_found(problems[0], now_s)
        else:
            decision = decide(
                self.servable,
                self._said,
                found,
                known=self.at_hand,
                is_new=self._is_new,
                repeat=self.must_repeat or now_s - self._said_s >= _REPEAT_S,
                unload_when_empty=unload_when_empty,
            )
            aspired = decision.aspired
            if aspired is not None:
                self._note_said(aspired, now_s)
            problems = found.problems + decision.problems
            self._sightings = found.sightings
            self.at_hand = found.at_hand
            self._is_new = False
        for problem in problems:
            if problem not in self.problems:
                self._log_problem(problem)
        self.problems = problems
        return aspired

    def give_up_waiting(self, now_s: float) -> AspiredVersions[StoragePath] | None:
        """Notes, once for each configuration, if its base path does not answer.

        Returns:
            As ``take``.

        """
        late_s = None if self.distant is None else self.distant.late_s()
        if late_s is None or (self.is_late and self.outlook is not None):
            return None
        self.is_late = True
        self.outlook = False
        servable = self.servable
        problem = (
            f"base path {servable.base_path} of {servable.name} has not answered "
            f"for {late_s:g} s; it is looked at again as soon as it does"
        )
        if self._is_unreadable and self.problems:
            problem = self.problems[0]  # it says more, and is not new
        elif problem not in self.problems:
            self._log_problem(problem)
        self.problems = (problem,)
        return self._say_nothing_found(problem, now_s)

    def _say_nothing_found(
        self, problem: str, now_s: float
    ) -> AspiredVersions[StoragePath] | None:
        """Returns what to emit of a base path that cannot be read; None for nothing."""
        if self._said is not None:
            return None
        aspired: AspiredVersions[StoragePath] = AspiredVersions(
            self.servable.name, (), problem
        )
        self._note_said(aspired, now_s)
        return aspired

    def _note_said(self, aspired: AspiredVersions[StoragePath], now_s: float) -> None:
        if aspired.versions != self._said:
            log.info(
                "event=aspired servable=%s versions=%s reason=%r",
                aspired.name,
                list_versions([data.id.version for data in aspired.versions]) or "none",
                aspired.reason,
            )
        self._said = aspired.versions
        self._said_s = now_s
        self.must_repeat = False

    def _log_problem(self, problem: str) -> None:
        log.warning(
            "event=source_problem servable=%s problem=%s", self.servable.name, problem
        )


def _outlook(look: Look) -> bool | None:
    if look.found is None:
        return False
    if look.found.versions:
        return True
    return None if look.found.settled_at_s is not None else False
