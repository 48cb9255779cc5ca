"""The layered area's baseline: the rule as it was published."""

from __future__ import annotations

import pytest

from tests.benchmarks.published_lbci import PublishedLbci, fitted_times
from tests.runtime.guest.stage_tables import times_of
from tfs.runtime.guest.layered.rules import Boundary


def test_the_paper_s_equations_are_kept_for_comparison() -> None:
    """Batches are capped by the fitted time, and join once, behind the second stage."""
    times = times_of(
        [{r: fixed + 0.001 * r for r in (1, 2, 4, 32)} for fixed in (0, 0, 0.01, 0.01)],
        32,
    )
    bound_s = times.total_s(8)
    rule = PublishedLbci(times, bound_s)
    assert 4 <= rule.most_rows(times) <= 10
    assert rule.rows_to_join(times, Boundary(1, 1, [1])) == 0
    assert rule.rows_to_join(times, Boundary(2, 1, [1, 1])) == 2
    assert rule.rows_to_join(times, Boundary(2, 1, [1], num_joins=1)) == 0
    assert rule.rows_to_join(times, Boundary(2, 1, [1], waited_s=bound_s)) == 0


def test_affine_times_are_fitted_within_a_tenth() -> None:
    """Equation 6 describes kernels whose time grows evenly."""
    totals = [20 + 12.6 * rows for rows in range(1, 33)]
    for fitted, measured in zip(fitted_times(totals), totals, strict=True):
        assert fitted == pytest.approx(measured, rel=0.1)
