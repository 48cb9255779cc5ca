"""The table a person reads."""

from __future__ import annotations

from tests.benchmarks.row import Goal, Measurement, Row, Series, judge
from tests.benchmarks.table import format_table


def test_columns_line_up_and_the_goals_are_counted() -> None:
    """Numbers are right-aligned, and the last line says how many goals were met."""
    rows = [
        judge(
            Row("a/b/small", "us", Goal("ratio", "<=", 0.5)),
            Measurement(Series.of(2.0, 3.0), Series.of(10.0)),
        ),
        judge(
            Row("a/b/large", "1/s", Goal("value", ">=", 2000)),
            Measurement(Series.of(1234.4)),
        ),
        judge(Row("a/c/later", "us", Goal("value", "<=", 1)), None),
    ]
    lines = format_table(rows).splitlines()
    assert lines == [
        "row            value          spread  baseline  ratio  goal          met",
        "a/b/small     2.5 us          2 .. 3        10   0.25  ratio <= 0.5  met",
        "a/b/large  1,234 1/s  1,234 .. 1,234                   >= 2000       MISSED",
        "a/c/later       - us                                   <= 1          MISSED",
        "",
        "1 of 3 goals met",
    ]
