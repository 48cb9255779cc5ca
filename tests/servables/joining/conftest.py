"""What tests of servables begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servables.joining.batched_sums import BatchedSums


@pytest.fixture
def at() -> Iterator[BatchedSums]:
    """A servable whose requests are joined, four rows a batch."""
    sums = BatchedSums()
    yield sums
    sums.close()
