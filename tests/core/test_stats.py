"""Counters and histograms: exact sums without locks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.threads import run_together
from tfs.core.stats import (
    Counter,
    Histogram,
    HistogramSnapshot,
    Labels,
    Stats,
    exponential_bounds,
)


def in_threads(num: int, work: Callable[[], object], times: int) -> None:
    def run() -> None:
        for _ in range(times):
            work()

    run_together(*[run] * num)


def test_a_counter_adds_up() -> None:
    """A counter is the sum of what was added."""
    counter = Counter()
    assert counter.value == 0
    counter.add()
    counter.add(2.5)
    assert counter.value == 3.5


def test_a_counter_loses_nothing_between_threads() -> None:
    """Threads add at the same time and every addition counts."""
    counter = Counter()
    in_threads(8, counter.add, 5000)
    assert counter.value == 40_000


def test_a_histogram_counts_by_bucket() -> None:
    """Bounds are inclusive; what is above the last has a bucket of its own."""
    histogram = Histogram([1.0, 2.0])
    for value in (0.5, 1.0, 1.5, 2.0, 99.0):
        histogram.observe(value)
    snapshot = histogram.snapshot()
    assert snapshot.counts == (2, 2, 1)
    assert (snapshot.num, snapshot.total, snapshot.mean) == (5, 104.0, 20.8)


def test_a_histogram_loses_nothing_between_threads() -> None:
    """Every observation of every thread is in the snapshot."""
    histogram = Histogram([10.0])
    in_threads(8, lambda: histogram.observe(1.0), 5000)
    assert histogram.snapshot().counts == (40_000, 0)


def test_an_empty_histogram_has_neutral_answers() -> None:
    """Nothing observed: zero everywhere, no division."""
    snapshot = Histogram([1.0]).snapshot()
    assert (snapshot.num, snapshot.mean, snapshot.quantile(0.99)) == (0, 0.0, 0.0)


@pytest.mark.parametrize("bounds", [[], [2.0, 1.0], [1.0, 1.0]])
def test_bounds_must_ascend(bounds: list[float]) -> None:
    """A histogram with muddled buckets would lie."""
    with pytest.raises(ValueError, match="ascend"):
        Histogram(bounds)


@given(
    st.lists(st.floats(0, 200), min_size=1),
    st.floats(0, 1),
)
def test_a_quantile_is_a_bound_that_enough_values_reach(
    values: list[float], share: float
) -> None:
    """At least the asked share of the values lies at or below the answer."""
    histogram = Histogram(exponential_bounds(1, 2, 8))
    for value in values:
        histogram.observe(value)
    answer = histogram.snapshot().quantile(share)
    assert answer in histogram.bounds
    inside = [value for value in values if value <= histogram.bounds[-1]]
    if len(inside) == len(values):
        below = sum(value <= answer for value in values)
        assert below >= share * len(values) - 1e-9


def test_exponential_bounds_multiply() -> None:
    """Each bound is a factor above the one before."""
    assert exponential_bounds(1, 10, 3) == (1, 10, 100)


def test_a_stat_is_made_once_per_name_and_labels() -> None:
    """Whoever asks with the same labels, in whatever order, shares the stat."""
    stats = Stats()
    a = stats.counter("requests", model="a", method="predict")
    assert stats.counter("requests", method="predict", model="a") is a
    assert stats.counter("requests", model="b", method="predict") is not a
    first = stats.histogram("latency", [1.0], model="a")
    assert stats.histogram("latency", [5.0], model="a") is first


def test_stats_list_what_there_is() -> None:
    """Readers see counters, gauges and histograms with names and labels."""
    stats = Stats()
    stats.counter("requests", model="a").add(2)
    stats.gauge("depth", lambda: 7.0, model="a")
    stats.gauge("depth", lambda: 8.0, model="a")
    stats.histogram("latency", [1.0]).observe(0.5)
    assert sorted(stats.counters()) == [
        ("depth", (("model", "a"),), 8.0),
        ("requests", (("model", "a"),), 2),
    ]
    ((name, labels, snapshot),) = stats.histograms()
    assert (name, labels, snapshot.counts) == ("latency", (), (1, 0))


def test_a_model_that_is_gone_is_forgotten() -> None:
    """Stats of one model go without touching another's."""
    stats = Stats()
    for model in ("a", "b"):
        stats.counter("requests", model=model, method="predict")
        stats.histogram("latency", [1.0], model=model)
        stats.gauge("depth", lambda: 0.0, model=model)
    stats.forget("model", ["a", "other"])
    assert {labels for _, labels, _ in stats.counters()} == {
        (("method", "predict"), ("model", "b")),
        (("model", "b"),),
    }
    assert [labels for _, labels, _ in stats.histograms()] == [(("model", "b"),)]


def test_what_is_gone_stays_in_the_sums() -> None:
    """An increase between two looks is never negative because a version went."""
    stats = Stats()
    for version in ("1", "2"):
        stats.counter("requests", model="a", version=version).add(3)
        stats.histogram("latency", [1.0], model="a", version=version)
    stats.gauge("depth", lambda: 7.0, model="a")
    stats.remove("requests", model="a", version="1")
    stats.remove("latency", model="a", version="1")
    stats.remove("requests", model="a")  # no such labels
    assert stats.sums() == {"requests": 6.0, "depth": 7.0}
    assert [labels for _, labels, _ in stats.histograms()] == [
        (("model", "a"), ("version", "2"))
    ]
    stats.forget("model", ["a", "other"])
    assert stats.sums() == {"requests": 6.0}
    stats.counter("requests", model="a", version="1").add(1)
    assert stats.sums() == {"requests": 7.0}


class Rows:
    """Counts by itself."""

    def __init__(self) -> None:
        self.counts = [1, 2]

    def counters(self) -> list[tuple[str, Labels, float]]:
        return [("batches", (("model", "m"),), float(sum(self.counts)))]

    def histograms(self) -> list[tuple[str, Labels, HistogramSnapshot]]:
        snapshot = HistogramSnapshot((1.0,), tuple(self.counts), 9.0)
        return [("rows", (("model", "m"),), snapshot)]


def test_numbers_kept_elsewhere_are_read_when_asked_for() -> None:
    """Who counts with one writer needs no cell per thread."""
    stats, rows = Stats(), Rows()
    stats.add_source(rows)
    rows.counts[0] = 5
    assert list(stats.counters()) == [("batches", (("model", "m"),), 7.0)]
    ((name, labels, found),) = stats.histograms()
    assert (name, labels, found.counts) == ("rows", (("model", "m"),), (5, 2))
    stats.remove_source(rows)
    stats.remove_source(rows)
    assert list(stats.counters()) == []
    assert list(stats.histograms()) == []


def test_a_source_that_nobody_keeps_is_gone() -> None:
    """Whatever a source holds on to (a model) is not kept alive by its numbers."""
    stats, rows = Stats(), Rows()
    stats.add_source(rows)
    del rows
    assert list(stats.counters()) == []
