"""How a measured number is set against its goal."""

from __future__ import annotations

import pytest

from tests.benchmarks.row import Goal, Measurement, Row, Series, judge

VALUE_GOAL = Goal("value", "<=", 18.0)
RATIO_GOAL = Goal("ratio", ">=", 15.0)


def test_median_and_extremes_describe_a_series() -> None:
    """One slow round moves the spread, not the value."""
    series = Series.of(3.0, 1.0, 2.0, 50.0, 2.5)
    assert series.median == 2.5
    assert series.spread == (1.0, 50.0)


def test_an_empty_series_is_refused() -> None:
    """There is no median of nothing."""
    with pytest.raises(ValueError, match="at least one"):
        Series(())


@pytest.mark.parametrize("name", ["rpc", "rpc/predict", "rpc//one", "a/b/c/d"])
def test_a_row_name_has_three_parts(name: str) -> None:
    """Names are area/what/condition, so that they sort and compare."""
    with pytest.raises(ValueError, match="area/what/condition"):
        Row(name, "us")


@pytest.mark.parametrize(
    ("goal", "value", "baseline", "results_ok", "met"),
    [
        (VALUE_GOAL, 18.0, None, True, True),
        (VALUE_GOAL, 18.1, None, True, False),
        (Goal("value", ">=", 45_000), 45_000.0, None, True, True),
        (Goal("value", ">=", 45_000), 44_999.0, None, True, False),
        (Goal("ratio", "<=", 0.5), 5.0, 10.0, True, True),
        (Goal("ratio", "<=", 0.5), 5.1, 10.0, True, False),
        # A ratio goal is not met by a number that stands alone, or against nothing.
        (Goal("ratio", "<=", 0.5), 1.0, None, True, False),
        (Goal("ratio", "<=", 0.5), 1.0, 0.0, True, False),
        # Fast and wrong is a miss.
        (VALUE_GOAL, 1.0, None, False, False),
        (None, 1.0, None, False, False),
        (None, 1.0, 2.0, True, None),
    ],
)
def test_met_follows_the_limit_and_the_results_check(
    goal: Goal | None,
    value: float,
    baseline: float | None,
    results_ok: bool,
    met: bool | None,
) -> None:
    """A goal is met only by right results within the limit that was written down."""
    measurement = Measurement(
        Series.of(value),
        None if baseline is None else Series.of(baseline),
        results_ok,
    )
    assert judge(Row("rpc/predict/small", "us", goal), measurement).met is met


def test_times_less_divides_the_baseline_by_the_value() -> None:
    """ "15x less" is a ratio of at least 15, as the issue says it."""
    row = Row("rpc/predict/small", "us", RATIO_GOAL, ratio="baseline/value")
    outcome = judge(row, Measurement(Series.of(20.0), Series.of(300.0)))
    assert outcome.ratio == 15.0
    assert outcome.met is True


def test_an_unmeasured_row_is_missed_and_null() -> None:
    """What nobody measured prints as null and missed, with its goal."""
    row = Row("rpc/predict/small", "us", VALUE_GOAL)
    assert judge(row, None).to_json() == {
        "name": "rpc/predict/small",
        "value": None,
        "unit": "us",
        "spread": [None, None],
        "baseline": None,
        "ratio": None,
        "goal": {"of": "value", "op": "<=", "limit": 18.0},
        "met": False,
    }


def test_a_measured_row_has_every_key_of_the_schema() -> None:
    """The JSON of a row is the issue's schema, key by key."""
    row = Row("rpc/predict/small", "us")
    measurement = Measurement(Series.of(1.0, 2.0, 4.0), Series.of(8.0))
    assert judge(row, measurement).to_json() == {
        "name": "rpc/predict/small",
        "value": 2.0,
        "unit": "us",
        "spread": [1.0, 4.0],
        "baseline": 8.0,
        "ratio": 0.25,
        "goal": None,
        "met": None,
    }
