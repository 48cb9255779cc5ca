"""What a trial has counted so far, and its record at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tfs.core.errors import ServingError
from tfs.core.servable import Outcome
from tfs.server.canary.comparison import Figures, Tally, figures_of
from tfs.server.canary.guard import Limit, judge, rejection
from tfs.server.model_settings import CanarySettings, GuardSettings

_SAMPLES_PER_LOOK: Final = 256  # a guard judges again when there are 1/256 more samples


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """A trial at one moment. Immutable.

    Attributes:
        settings: The settings as configured.
        rejected: Why a guard ended it; "" if none did.
        since_s: When it began or was rejected, in seconds since the epoch.
        total: Figures of all signatures together.
        by_signature: Figures by signature name.
        limits: The limits of the guard, each with its figure.
        num_teed: Copies that were taken.
        num_dropped: Copies that found the queue full.
        num_split_to_primary: Requests of a split that the primary answered.
        num_split_to_canary: Requests of a split that the canary answered.

    """

    settings: CanarySettings
    rejected: str
    since_s: float
    total: Figures
    by_signature: dict[str, Figures]
    limits: tuple[Limit, ...]
    num_teed: int
    num_dropped: int
    num_split_to_primary: int
    num_split_to_canary: int


class TrialCounts:
    """Counts the requests of a trial and compares both versions. Its trial's lock guards it.

    Attributes:
        num_teed: Copies that were taken.
        num_dropped: Copies that found the queue full, or the canary not there.

    """

    def __init__(self) -> None:
        self.num_teed = 0
        self.num_dropped = 0
        self._tallies: dict[str, Tally] = {}
        self._refused = Tally()  # requests that belong to no signature
        self._num_split = [0, 0]  # by the primary, by the canary
        self._judged_from = 0  # the number of samples at which the guard judges again

    def of(self, signature_name: str) -> Tally:
        """Returns the tally of a signature, to which the caller may add."""
        return self._tallies.setdefault(signature_name, Tally())

    def add_split(
        self,
        signature_name: str,
        outcome: Outcome,
        latency_s: float,
        *,
        is_canary: bool,
    ) -> None:
        """Adds a request of a split that one of the versions answered."""
        self._num_split[is_canary] += 1
        self.of(signature_name).add_split(outcome, latency_s, is_canary=is_canary)

    def add_refused(self, error: ServingError, *, is_canary: bool) -> None:
        """Adds a request of a split that fits no signature of its version."""
        self._num_split[is_canary] += 1
        self._refused.add_split(error, 0.0, is_canary=is_canary)

    def judge_soon(self) -> None:
        """Has the guard judge at the next sample, because its limits have changed."""
        self._judged_from = 0

    def why_rejected(self, guard: GuardSettings) -> str:
        """Returns why the guard ends the trial now; "" if it does not, or has too few samples."""
        num = self._refused.canary.num
        num += sum(tally.canary.num for tally in self._tallies.values())
        if num < max(guard.min_samples, self._judged_from):
            return ""
        # One more of many samples changes little, and computing the figures takes 40 us.
        self._judged_from = num + 1 + num // _SAMPLES_PER_LOOK
        figures = self._total()
        return rejection(judge(guard, figures), figures)

    def record(
        self, settings: CanarySettings, rejected: str, since_s: float
    ) -> TrialRecord:
        """Returns the record of the trial so far."""
        total = self._total()
        return TrialRecord(
            settings=settings,
            rejected=rejected,
            since_s=since_s,
            total=total,
            by_signature={
                name: figures_of([tally]) for name, tally in self._tallies.items()
            },
            limits=judge(settings.guard, total),
            num_teed=self.num_teed,
            num_dropped=self.num_dropped,
            num_split_to_primary=self._num_split[False],
            num_split_to_canary=self._num_split[True],
        )

    def _total(self) -> Figures:
        return figures_of([*self._tallies.values(), self._refused])
