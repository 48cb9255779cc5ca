"""Prometheus' text format."""

from __future__ import annotations

import math

from tfs.core.stats import HistogramSnapshot
from tfs.server.metrics_page import Exposition


def test_a_family_is_whole_and_typed_once() -> None:
    """Samples of one name stand together, whenever they were added."""
    page = Exposition()
    page.add("a", (("m", "x"),), 1, "counter")
    page.add("b", (), 2.5)
    page.add("a", (("m", "y"),), 3e6, "counter")
    assert list(page.lines()) == [
        "# TYPE a counter",
        'a{m="x"} 1',
        'a{m="y"} 3000000',
        "# TYPE b gauge",
        "b 2.5",
    ]


def test_a_family_with_a_meaning_has_a_line_of_help() -> None:
    """One line before its type, whatever stands in the text."""
    page = Exposition({"a": "a \\ and\na line"})
    page.add("a", (), 1, "counter")
    page.add("b", (), 1, "counter")
    assert list(page.lines())[:3] == [
        "# HELP a a \\\\ and\\na line",
        "# TYPE a counter",
        "a 1",
    ]


def test_histograms_add_up_and_end_at_infinity() -> None:
    """Buckets are cumulative, in the unit that is asked for; the last has all."""
    page = Exposition()
    found = HistogramSnapshot((0.001, 0.5), (2, 3, 1), 7.25)
    page.add_histogram("h_us", (("m", "x"),), found, 1e6)
    assert list(page.lines()) == [
        "# TYPE h_us histogram",
        'h_us_bucket{m="x",le="1000"} 2',
        'h_us_bucket{m="x",le="500000"} 5',
        'h_us_bucket{m="x",le="+Inf"} 6',
        'h_us_sum{m="x"} 7250000',
        'h_us_count{m="x"} 6',
    ]


def test_what_would_break_a_line_is_escaped() -> None:
    """Names of models may hold anything; numbers may be none."""
    page = Exposition()
    page.add("a", (("m", 'q"b\\n\nl'),), math.nan)
    page.add("a", (), math.inf)
    page.add("a", (), -math.inf)
    assert list(page.lines())[1:] == [
        'a{m="q\\"b\\\\n\\nl"} NaN',
        "a +Inf",
        "a -Inf",
    ]
