"""The layered area, with models of no size: is every row measured?"""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from torch import nn

from tests.benchmarks import layered
from tests.benchmarks.harness import run_area
from tests.benchmarks.published_lbci import PublishedLbci, fitted_times
from tests.benchmarks.row import Series
from tests.runtime.guest.stage_tables import times_of
from tfs.runtime.guest.layered.rules import Boundary


def tiny() -> nn.Module:
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))


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


@pytest.mark.slow
def test_every_row_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The area runs to its end with models of any size."""
    subjects = {name: layered.Subject(tiny, (4,), 1.0) for name in layered.SUBJECTS}
    monkeypatch.setattr(layered, "SUBJECTS", subjects)
    monkeypatch.setattr(layered, "_KNOWN", {})
    monkeypatch.setattr(
        layered, "served_means", lambda *_: (Series.of(1), Series.of(1))
    )
    little = layered.Effort((1, 2, 4, 32), 2, 60, (1,), 0.0, (1, 8, 2), (8, 512), 64)
    monkeypatch.setattr(layered, "EFFORT", little)
    out = io.StringIO()
    path = tmp_path / "layered.json"
    status = run_area(layered.AREA, path, commit="none", machine_text="a test", out=out)
    assert status == 0, out.getvalue()
