"""Who is ahead: beyond both spreads, with enough samples, in the right direction."""

from __future__ import annotations

import pytest

from tests.benchmarks.peers.contest import Verdict, compare, count_lost, standing
from tests.benchmarks.row import Series

LOW = Series.of(1, 2, 3, 2, 1)
HIGH = Series.of(4, 5, 6, 5, 4)
BETWEEN = Series.of(3, 3.5, 4, 3.5, 3)
FEW = Series.of(4, 5, 6, 5)


@pytest.mark.parametrize(
    ("ours", "theirs", "less_is_better", "verdict"),
    [
        (LOW, HIGH, True, Verdict.WON),
        (HIGH, LOW, True, Verdict.LOST),
        (LOW, HIGH, False, Verdict.LOST),
        (HIGH, LOW, False, Verdict.WON),
        (LOW, BETWEEN, True, Verdict.TIE),  # the spreads touch
        (BETWEEN, HIGH, False, Verdict.TIE),
        (LOW, LOW, True, Verdict.TIE),
        (LOW, FEW, True, Verdict.TIE),  # four samples decide nothing
        (FEW, LOW, True, Verdict.TIE),
    ],
)
def test_a_side_is_ahead_only_beyond_the_spread_of_both(
    ours: Series, theirs: Series, less_is_better: bool, verdict: Verdict
) -> None:
    """The worst sample of one beats the best of the other, of five each, or nobody won."""
    assert compare(ours, theirs, less_is_better=less_is_better) is verdict


@pytest.mark.parametrize(
    ("others", "verdict"),
    [
        ((HIGH, HIGH), Verdict.WON),
        ((HIGH, BETWEEN), Verdict.TIE),
        ((), Verdict.TIE),
    ],
)
def test_first_is_who_is_ahead_of_all(
    others: tuple[Series, ...], verdict: Verdict
) -> None:
    """One tie and it is not won; against nobody nothing is won."""
    assert standing(LOW, others, less_is_better=True) is verdict


def test_one_that_is_ahead_is_enough_to_lose() -> None:
    """Nobody else's defeat makes up for it."""
    verdict = standing(BETWEEN, (HIGH, Series.of(*[1] * 5)), less_is_better=True)
    assert verdict is Verdict.LOST


def test_only_lost_rows_are_counted() -> None:
    """A tie is neither won nor lost."""
    assert count_lost([Verdict.WON, Verdict.TIE, Verdict.LOST, Verdict.LOST]) == 2
