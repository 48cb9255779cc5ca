"""Who is ahead in a row: a decision over samples, nothing else."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

from tests.benchmarks.row import Series

MIN_SAMPLES = 5


class Verdict(enum.Enum):
    """What a comparison says of the first side; the value is what tables print."""

    WON = "won"
    TIE = "tie"
    LOST = "LOST"


def compare(ours: Series, theirs: Series, *, less_is_better: bool) -> Verdict:
    """Compares two sides of one round-robin run.

    A side is ahead if its worst sample beats the other's best, that is, beyond the
    spread of both; with fewer than five samples of either the spread says nothing, and
    it is a tie.
    """
    if min(len(ours.samples), len(theirs.samples)) < MIN_SAMPLES:
        return Verdict.TIE
    our_low, our_high = ours.spread
    their_low, their_high = theirs.spread
    if not less_is_better:
        our_low, our_high, their_low, their_high = (
            *(-our_high, -our_low),
            *(-their_high, -their_low),
        )
    if our_high < their_low:
        return Verdict.WON
    if our_low > their_high:
        return Verdict.LOST
    return Verdict.TIE


def standing(
    ours: Series, others: Iterable[Series], *, less_is_better: bool
) -> Verdict:
    """Compares one side with all others: WON is first, LOST is behind any of them."""
    verdicts = {
        compare(ours, theirs, less_is_better=less_is_better) for theirs in others
    }
    if Verdict.LOST in verdicts:
        return Verdict.LOST
    return Verdict.WON if verdicts == {Verdict.WON} else Verdict.TIE


def count_lost(verdicts: Sequence[Verdict]) -> int:
    """Returns how many rows somebody else leads; a tie is neither won nor lost."""
    return sum(verdict is Verdict.LOST for verdict in verdicts)
