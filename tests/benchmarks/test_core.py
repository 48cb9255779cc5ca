"""The core area's own logic, with little effort: every row measured, results right."""

from __future__ import annotations

from tests.benchmarks import core
from tests.benchmarks.harness import Report


def test_every_row_is_measured_and_right() -> None:
    """Nothing is missing, and no result was wrong."""
    effort = core.Effort(
        num_calls=100,
        num_rounds=2,
        swap_duration_s=0.1,
        num_models=20,
        num_tables=3,
        num_networks=1,
    )
    area = core.build_area(effort)
    report = Report(area.rows)
    for part in area.parts:
        part(report)
    assert report.missing() == []
    outcomes = {outcome.row.name: outcome for outcome in report.outcomes()}
    failed = outcomes["core/failed-lookups/100-swaps-per-s"]
    assert failed.met is True


def test_baseline_counts_references() -> None:
    """What is compared does the same work."""
    locked = core.filled_locked_map()
    entry = locked.acquire("m3")
    assert (entry.servable, entry.num_references) == ("m3/1", 1)
    entry.release()
    assert entry.num_references == 0
    with core.filled_map().acquire("m3") as servable:
        assert servable == "m3/1"
