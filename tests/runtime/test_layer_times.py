"""What is known of the time that layers take."""

from __future__ import annotations

import pytest

from tfs.runtime.layer_times import LayerTimes


def test_times_are_known_from_two_sizes_of_each_layer_on() -> None:
    """One size does not tell what a second row costs."""
    times = LayerTimes(2, 8)
    for layer, rows in ((0, 1), (0, 2), (1, 1)):
        times.note(layer, rows, 1.0)
        assert not times.are_known
    times.note(1, 4, 1.0)
    assert times.are_known
    assert not LayerTimes(1, 8).are_known


def test_sizes_between_and_beyond_follow_their_neighbours() -> None:
    """Estimates follow their neighbours, and do not fall beyond what was measured."""
    times = LayerTimes(1, 32)
    times.note(0, 2, 4.0)
    times.note(0, 4, 8.0)
    assert times.total_s(3) == pytest.approx(6.0)
    assert times.total_s(8) == pytest.approx(16.0)
    assert times.total_s(1) == pytest.approx(2.0)
    assert times.total_s(0) == 0.0
    assert times.total_s(6) == pytest.approx(12.0)
    times.note(0, 8, 7.0)
    times.begin()  # a kernel for eight is quicker than that for four
    assert times.total_s(6) == pytest.approx(7.5)
    assert times.total_s(16) == pytest.approx(7.0)


def test_a_run_is_parted_at_any_layer() -> None:
    """What is behind and what is to come add up to all."""
    times = LayerTimes(3, 8)
    for rows in (1, 2):
        for layer in range(3):
            times.note(layer, rows, (layer + 1) * rows)
    assert [times.until_s(layer, 2) for layer in (0, 1, 2)] == [0, 2, 6]
    assert [times.from_s(layer, 2) for layer in (0, 1, 2)] == [12, 10, 6]
    assert times.total_s(2) == 12
    assert times.best_rate == pytest.approx(1 / 6)


def test_what_changes_is_followed_slowly() -> None:
    """One slow call does not turn the table over, and none does within a run."""
    times = LayerTimes(1, 8)
    times.note(0, 1, 1.0)
    times.note(0, 2, 1.0)
    assert times.total_s(1) == 1.0
    times.note(0, 1, 2.0)
    assert times.total_s(1) == 1.0
    times.begin()
    assert times.total_s(1) == pytest.approx(1.2)


def test_joining_costs_by_the_row() -> None:
    """Joining costs what was measured at each layer, and nothing if none was."""
    times = LayerTimes(3, 8)
    assert times.join_s(1, 4) == 0.0
    times.note_join(1, 4, 8.0)
    assert times.join_s(1, 2) == pytest.approx(4.0)
    times.note_join(1, 4, 12.0)
    assert times.join_s(1, 1) == pytest.approx(2.2)
    assert times.join_s(2, 1) == 0.0
