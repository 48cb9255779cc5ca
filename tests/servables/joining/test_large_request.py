"""How large the portions of a large request are."""

from __future__ import annotations

import pytest

from tfs.servables.joining.large_request import CALL_S, PortionSize


@pytest.mark.parametrize("batch_s", [0.0, CALL_S, 0.6 * CALL_S])
def test_where_batches_take_long_requests_are_spread_over_them(batch_s: float) -> None:
    """Portions hardly larger would only keep their last rows from being joined."""
    assert PortionSize.beside_batches(32, batch_s) is None


def test_portions_of_a_small_model_begin_with_what_its_batches_promise() -> None:
    """The first portion is in proportion to batches, not far beyond measured sizes."""
    found = PortionSize.beside_batches(32, CALL_S / 8)
    assert found is not None
    assert found.num_rows == 256
    quickest = PortionSize.beside_batches(32, 1e-9)
    assert quickest is not None
    assert quickest.num_rows == 1024


def test_portions_come_to_take_as_long_as_they_should() -> None:
    """Step by step both ways, whatever the first guess was; never as small as batches."""
    size = PortionSize.beside_batches(32, CALL_S / 10)
    assert size is not None
    for _ in range(20):
        size.note(size.num_rows, size.num_rows * CALL_S / 5000)
    assert 4900 < size.num_rows <= 5000
    size.note(100, 0.1 * CALL_S)  # the rest of a request
    assert size.num_rows > 4900
    for _ in range(20):
        size.note(size.num_rows, 10.0)
    assert size.num_rows == 64


def test_a_fixed_size_learns_nothing() -> None:
    """It is what a queue has room for."""
    size = PortionSize.fixed(100)
    for duration_s in (0.0, 1e-6, 100.0):
        size.note(100, duration_s)
        assert size.num_rows == 100
