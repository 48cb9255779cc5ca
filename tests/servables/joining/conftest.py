"""What tests of servables begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servables.joining.batched_sums import BatchedSums


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Closes what a test made."""
    yield
    while BatchedSums.made:
        BatchedSums.made.pop().loop.close()


@pytest.fixture
def at() -> BatchedSums:
    """A servable whose requests are joined, four rows a batch."""
    return BatchedSums()
