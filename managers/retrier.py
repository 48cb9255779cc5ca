"""Loads failed versions again: after a while by itself, or at once on request.

The harness takes care of the pauses between the attempts of one load (RetryOptions).
This takes care of what comes afterwards: a load that stood back so that the old version
could return, a version that failed for good, and one that serves with a fault.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from managers.basic_manager import BasicManager
from managers.harness_snapshot import HarnessSnapshot
from managers.harness_state import END_STATES, HarnessState
from managers.loader_harness import LoaderHarness
from managers.retry import RetryOptions
from tfs.core.clock import Clock
from tfs.core.errors import Quarantined
from tfs.core.servable_data import ServableData
from tfs.core.servable_id import ServableId

log = logging.getLogger(__name__)

_BY_REQUEST = "tried again by request"
_FIRST_PAUSE_S: Final = 60.0
_LONGEST_PAUSE_S: Final = 900.0
_WELL_S: Final = 3600.0
"""A version that crashed too often is tried again after a pause, which doubles each time
up to the longest one. After an hour without that, the next pause is the first one again."""


@dataclass(frozen=True, slots=True)
class _LaterTry:
    """An attempt to come. Immutable.

    Attributes:
        id: The version.
        generation: Which of the version's harnesses failed.
        at_s: When it is due, by the clock.
        pause_s: How long it would have waited if there were no old version to bring
            back.

    """

    id: ServableId
    generation: int
    at_s: float
    pause_s: float


class Retrier:
    """Decides which managed versions are tried again, and when. Confined to one step.

    If the old version has to go before the new one is loaded, each attempt takes away
    what serves. So after the first failed attempt the old version returns, and the next
    attempt waits for a long time. A passing fault still heals in the end, and a broken
    version costs seconds of service instead of all its retries.

    Args:
        basic: Manages the versions.
        retry: How long to pause.
        clock: For pauses.

    """

    def __init__(self, basic: BasicManager, retry: RetryOptions, clock: Clock) -> None:
        self._basic = basic
        self._retry = retry
        self._clock = clock
        self._later: list[_LaterTry] = []
        # Of versions that crashed too often: how often they did, and when the last time.
        self._quarantines: dict[ServableId, tuple[int, float]] = {}

    def stand_back(self, version: HarnessSnapshot) -> None:
        """Gives up a load that keeps failing, for now, so that the old version returns.

        It is tried again after a long pause, if it has any attempts left.
        """
        harness = self._basic.harness(version.id, version.generation)
        if harness is None or harness.error is None:
            return
        num_failures = harness.num_failures
        pause_s = self._retry.pause_s(num_failures, harness.error)
        long_pause_s = self._retry.long_pause_s(num_failures, harness.error)
        if pause_s is None or long_pause_s is None:
            return
        at_s = self._clock.now() + long_pause_s
        log.info(
            "event=load_put_off servable=%s again_in_s=%.0f why=%r",
            version.id.slashed,
            long_pause_s,
            "what was unloaded for it comes back meanwhile",
        )
        self._later.append(_LaterTry(version.id, version.generation, at_s, pause_s))
        self._basic.try_later(version.id, version.generation, at_s)

    def note_quarantines(self, name: str) -> None:
        """Plans when to try versions again that crash too often."""
        for harness in self._basic.harnesses(name):
            is_new = isinstance(self._basic.fault_of(harness), Quarantined)
            if is_new and harness.is_aspired and not self._is_planned(harness):
                self._plan_again(harness)

    def _is_planned(self, harness: LoaderHarness) -> bool:
        return any(each.generation == harness.generation for each in self._later)

    def _plan_again(self, harness: LoaderHarness) -> None:
        now_s = self._clock.now()
        for servable_id, (_, last_s) in list(self._quarantines.items()):
            if now_s - last_s > _WELL_S:
                del self._quarantines[servable_id]
        num, _ = self._quarantines.get(harness.id, (0, now_s))
        self._quarantines[harness.id] = (num + 1, now_s)
        pause_s = min(_FIRST_PAUSE_S * 2.0 ** min(num, 10), _LONGEST_PAUSE_S)
        log.info(
            "event=quarantine_pause servable=%s again_in_s=%.0f",
            harness.id.slashed,
            pause_s,
        )
        at_s = now_s + pause_s
        self._later.append(_LaterTry(harness.id, harness.generation, at_s, pause_s))
        self._basic.note_later(harness.id, harness.generation, at_s)

    def hurry(self, name: str, versions: Sequence[HarnessSnapshot]) -> None:
        """Shortens the pause of a load that stood back while nothing could return."""
        if not all(v.state in END_STATES for v in versions):
            return
        now_s = self._clock.now()
        self._later = [
            replace(each, at_s=min(each.at_s, now_s + each.pause_s))
            if each.id.name == name
            else each
            for each in self._later
        ]

    def next_s(self) -> float | None:
        """Returns when, by the clock, the next load is due; None if none waits."""
        return min((each.at_s for each in self._later), default=None)

    def try_due(self, *, is_closing: bool) -> None:
        """Begins the loads whose pause is over; drops them if the manager closes."""
        now_s = self._clock.now()
        due = [each for each in self._later if each.at_s <= now_s]
        if due:
            self._later = [each for each in self._later if each.at_s > now_s]
        for later in due:
            harness = self._basic.harness(later.id, later.generation)
            if harness is None or not harness.is_aspired or is_closing:
                continue
            if harness.state is HarnessState.READY:
                self._replace_faulty(harness, "tried again after its crashes")
            else:
                why = f"tried again, {harness.num_failures} attempt(s) failed"
                self._basic.try_again(later.id, later.generation, why, counts_on=True)

    def try_now(self, name: str, numbers: AbstractSet[int]) -> None:
        """Has aspired versions that failed, or that pause between attempts, loaded now."""
        for harness in self._basic.harnesses(name):
            if harness.id.version not in numbers or not harness.is_aspired:
                continue
            if harness.state is HarnessState.ERROR:
                self._basic.try_again(harness.id, harness.generation, _BY_REQUEST)
            elif harness.state is HarnessState.READY:
                self._replace_faulty(harness, _BY_REQUEST)
            else:
                harness.end_pause()

    def _replace_faulty(self, harness: LoaderHarness, why: str) -> None:
        """Replaces a version that serves with a fault, as if its files had changed."""
        make_another = harness.make_another
        if make_another is None or self._basic.fault_of(harness) is None:
            return
        try:
            data = ServableData(harness.id, make_another())
        except Exception as error:  # its files may be gone
            log.warning(
                "event=not_tried_again servable=%s error=%s", harness.id.slashed, error
            )
            return
        self._basic.replace(harness, data, why)
