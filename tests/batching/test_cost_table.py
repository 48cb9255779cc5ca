"""Measured time by batch size."""

from __future__ import annotations

import pytest

from batching.cost_table import CostTable

STEPPED = {1: 10.2, 4: 21.1, 8: 32.3, 12: 43.9, 16: 31.3, 32: 34.4}


def test_predictions_follow_the_table() -> None:
    """Measured sizes as they are, lines between, in proportion beyond."""
    table = CostTable({2: 1.0, 4: 2.0})
    assert [table.predict_s(n) for n in (1, 2, 3, 4, 8)] == [1.0, 1.0, 1.5, 2.0, 4.0]
    assert CostTable().predict_s(5) == 0.0


def test_observations_move_the_table() -> None:
    """Known sizes slowly, new ones between what was expected and what was seen."""
    table = CostTable({1: 1.0, 3: 3.0})
    table.observe(1, 2.0)
    assert table.predict_s(1) == pytest.approx(1.1)
    table.observe(2, 4.05)
    assert table.predict_s(2) == pytest.approx((2.05 + 4.05) / 2)
    assert table.sizes == (1, 2, 3)
    assert table.num_changes == 2
    empty = CostTable()
    empty.observe(5, 1.0)
    assert empty.predict_s(5) == 1.0
    empty.observe(5, 0.5)
    assert empty.predict_s(5) == 0.75, "few observations weigh alike"


def test_padding_goes_to_the_cheapest_measured_size() -> None:
    """Twelve rows of this kernel are dearer than sixteen; eight are no more."""
    assert CostTable(STEPPED).cheaper_sizes((1, 4, 8, 12, 16, 32)) == {12: 16}


def test_padding_has_to_pay_for_itself() -> None:
    """Between sizes that take microseconds, joining costs more than is saved."""
    assert CostTable({1: 140e-6, 2: 50e-6}).cheaper_sizes((1, 2)) == {}
    assert CostTable({1: 160e-6, 2: 50e-6}).cheaper_sizes((1, 2)) == {1: 2}


def test_without_measurements_padding_goes_to_the_next_size() -> None:
    """What is not known to be cheaper is not."""
    assert CostTable().cheaper_sizes((4, 8, 16)) == {}
    assert CostTable({16: 1.0}).cheaper_sizes((4, 8, 16)) == {}


def test_the_best_batch_is_the_smallest_near_the_best_rate() -> None:
    """More rows would only add latency."""
    table = CostTable({1: 1.0, 8: 2.0, 16: 3.95, 32: 7.9})
    assert table.best_batch_rows() == 16 or table.best_batch_rows() == 8
    assert CostTable().best_batch_rows() is None


def test_the_size_that_keeps_up_is_the_smallest_fast_enough() -> None:
    """The smallest batch that keeps up is chosen, else the most efficient one."""
    table = CostTable({1: 1.0, 4: 2.0, 8: 3.0})
    assert [table.smallest_keeping_up(rate) for rate in (0.5, 1.5, 2.5, 9.0)] == [
        1, 4, 8, 8,
    ]  # fmt: skip
    assert CostTable().smallest_keeping_up(1.0) is None


def test_sizes_are_compared_by_times_of_one_kind() -> None:
    """What is measured beforehand leaves out the way to the device, and a first run
    allocates; by such times everything would be padded for ever.
    """
    table = CostTable({1: 0.001, 4: 0.002})
    for _ in range(3):
        assert table.cheaper_sizes((3, 4)) == {}
        table.observe(3, 0.02)
    assert table.cheaper_sizes((3, 4)) == {}, "4 was never seen"
    for _ in range(3):
        assert table.cheaper_sizes((3, 4)) == {}
        table.observe(4, 0.003)
    assert table.cheaper_sizes((3, 4)) == {3: 4}
    table.observe(4, 3.0)
    assert table.cheaper_sizes((3, 4)) == {3: 4}, "one interruption is no slow kernel"
    table.doubt(3)
    assert table.cheaper_sizes((3, 4)) == {}
    for _ in range(3):
        table.observe(3, 0.002)
    assert table.cheaper_sizes((3, 4)) == {}


def test_one_interrupted_batch_makes_little_difference() -> None:
    """A host that stands still for a minute says nothing of the next batch."""
    table = CostTable({1: 0.01})
    table.observe(1, 60.0)
    assert table.predict_s(1) < 0.013


def test_a_first_run_that_took_long_is_soon_forgotten() -> None:
    """It compiled something; what comes after it shows what batches take."""
    table = CostTable()
    table.observe(1, 30.0)
    for _ in range(4):
        table.observe(1, 0.01)
    assert table.predict_s(1) < 0.05
