"""Loads failed versions again: after a while by itself, or at once on request.

The harness takes care of the pauses between the attempts of one load (RetryOptions).
This takes care of what comes afterwards: a load that stood back so that the old version
could return, a version that failed for good, and one that serves with a fault.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from managers.loading.version_executor import VersionExecutor
from managers.versions.harness_state import END_STATES, HarnessSnapshot, HarnessState
from managers.versions.version import RetryOptions, Version
from managers.versions.version_table import VersionTable
from tfs.core.clock import Clock
from tfs.core.errors import Quarantined
from tfs.core.servable_id import ServableId
from tfs.core.source import ServableData

log = logging.getLogger(__name__)

_BY_REQUEST = "tried again by request"
_FIRST_PAUSE_S: Final = 60.0
_LONGEST_PAUSE_S: Final = 900.0
_WELL_S: Final = 3600.0
"""A version that crashed too often is tried again after a pause, which doubles each time
up to the longest one. After an hour without that, the next pause is the first one again."""


class Retrier:
    """Decides which managed versions are tried again, and when. Confined to one step.

    If the old version has to go before the new one is loaded, each attempt takes away
    what serves. So after the first failed attempt the old version returns, and the next
    attempt waits for a long time. A passing fault still heals in the end, and a broken
    version costs seconds of service instead of all its retries.

    Args:
        table: The versions.
        executor: Ends loads that stand back.
        retry: How long to pause.
        clock: For pauses.

    """

    def __init__(
        self,
        table: VersionTable,
        executor: VersionExecutor,
        retry: RetryOptions,
        clock: Clock,
    ) -> None:
        self._table = table
        self._executor = executor
        self._retry = retry
        self._clock = clock
        self._later: list[Version] = []  # which are tried again, each when it says
        # Of versions that crashed too often: how often they did, and when the last time.
        self._quarantines: dict[ServableId, tuple[int, float]] = {}

    def stand_back(self, version: HarnessSnapshot) -> None:
        """Gives up a load that keeps failing, for now, so that the old version returns.

        It is tried again after a long pause, if it has any attempts left.
        """
        failing = self._table.find(version.id, version.generation)
        if failing is None or failing.error is None:
            return
        num_failures = failing.num_failures
        pause_s = self._retry.pause_s(num_failures, failing.error)
        long_pause_s = self._retry.long_pause_s(num_failures, failing.error)
        if pause_s is None or long_pause_s is None:
            return
        log.info(
            "event=load_put_off servable=%s again_in_s=%.0f why=%r",
            version.id.slashed,
            long_pause_s,
            "what was unloaded for it comes back meanwhile",
        )
        self._plan(failing, self._clock.now() + long_pause_s, pause_s)
        self._executor.cancel_load(version.id, version.generation)

    def note_quarantines(self, name: str) -> None:
        """Plans when to try versions again that crash too often."""
        for version in self._table.stream(name):
            if not (isinstance(version.fault, Quarantined) and version.is_aspired):
                continue
            if version not in self._later:
                self._plan_again(version)

    def _plan_again(self, version: Version) -> None:
        now_s = self._clock.now()
        for servable_id, (_, last_s) in list(self._quarantines.items()):
            if now_s - last_s > _WELL_S:
                del self._quarantines[servable_id]
        num, _ = self._quarantines.get(version.id, (0, now_s))
        self._quarantines[version.id] = (num + 1, now_s)
        pause_s = min(_FIRST_PAUSE_S * 2.0 ** min(num, 10), _LONGEST_PAUSE_S)
        log.info(
            "event=quarantine_pause servable=%s again_in_s=%.0f",
            version.id.slashed,
            pause_s,
        )
        self._plan(version, now_s + pause_s, pause_s)

    def _plan(self, version: Version, at_s: float, pause_s: float) -> None:
        self._later.append(version)
        version.again_at_s, version.again_pause_s = at_s, pause_s

    def hurry(self, name: str, versions: Sequence[HarnessSnapshot]) -> None:
        """Shortens the pause of a load that stood back while nothing could return."""
        if not all(v.state in END_STATES for v in versions):
            return
        now_s = self._clock.now()
        for each in self._later:
            if each.id.name == name and each.again_at_s is not None:
                each.again_at_s = min(each.again_at_s, now_s + each.again_pause_s)

    def next_s(self) -> float | None:
        """Returns when, by the clock, the next load is due; None if none waits."""
        times_s = (each.again_at_s for each in self._later)
        return min((each for each in times_s if each is not None), default=None)

    def try_due(self, *, is_closing: bool) -> list[str]:
        """Begins the loads whose pause is over; drops them if the manager closes.

        Returns the names of the servables to plan.
        """
        now_s = self._clock.now()
        due = [each for each in self._later if (each.again_at_s or 0.0) <= now_s]
        if due:
            self._later = [each for each in self._later if each not in due]
        for version in due:
            is_managed = self._table.find(version.id, version.generation) is version
            if not is_managed or not version.is_aspired or is_closing:
                continue
            if version.state is HarnessState.READY:
                self._replace_faulty(version, "tried again after its crashes")
            else:
                num = version.num_failures
                self._table.renew(
                    version,
                    f"tried again, {num} attempt(s) failed",
                    num_failures=num,
                    estimate=version.estimate,
                )
        return [version.id.name for version in due]

    def try_now(self, name: str, numbers: AbstractSet[int]) -> None:
        """Has aspired versions that failed, or that pause between attempts, loaded now."""
        for version in self._table.stream(name):
            if version.id.version not in numbers or not version.is_aspired:
                continue
            if version.state is HarnessState.ERROR:
                self._table.renew(version, _BY_REQUEST)
            elif version.state is HarnessState.READY:
                self._replace_faulty(version, _BY_REQUEST)
            else:
                version.end_pause()

    def _replace_faulty(self, version: Version, why: str) -> None:
        """Replaces a version that serves with a fault, as if its files had changed."""
        make_another = version.make_another
        if make_another is None or version.fault is None:
            return
        try:
            data = ServableData(version.id, make_another())
        except Exception as error:  # its files may be gone
            log.warning(
                "event=not_tried_again servable=%s error=%s", version.id.slashed, error
            )
            return
        version.is_aspired = False
        version.reason = f"replaced; {why}"
        self._executor.cancel_load(version.id, version.generation)
        self._table.manage(data, reason=why, is_replacement=True)
