from __future__ import annotations

import pytest

from tfs.runtime.process.call_times import CallTimes


def test_the_limit_is_the_timeout_until_calls_are_known_to_be_long() -> None:
    """Ten times the measured time of that size, if that is more."""
    times = CallTimes()
    assert times.limit_s(0, 8, 30.0) == 30.0
    times.observe(0, 8, 5.0)
    assert times.limit_s(0, 8, 30.0) == 50.0
    assert times.limit_s(0, 4, 30.0) == 30.0
    assert times.limit_s(1, 8, 30.0) == 30.0
    times.observe(0, 4, 0.1)
    assert times.limit_s(0, 4, 30.0) == 30.0


def test_the_mean_follows_slowly() -> None:
    """One outlier does not change what a call of that size is taken to cost."""
    times = CallTimes()
    times.observe(0, 1, 1.0)
    times.observe(0, 1, 9.0)
    assert times.limit_s(0, 1, 0.0) == pytest.approx(20.0)


def test_calls_are_short_only_when_measured() -> None:
    """What nobody measured is not short."""
    times = CallTimes()
    assert not times.is_short(0, 1)
    times.observe(0, 1, 0.0005)
    times.observe(0, 64, 0.005)
    assert times.is_short(0, 1)
    assert not times.is_short(0, 64)


def test_the_table_is_bounded() -> None:
    """Any number of batch sizes costs no more than a few hundred entries."""
    times = CallTimes()
    for num_rows in range(10_000):
        times.observe(0, num_rows, 1.0)
    assert times.limit_s(0, 9_999, 0.0) == 0.0
    assert times.limit_s(0, 1, 0.0) == 10.0
