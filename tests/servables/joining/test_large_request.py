"""How large the portions of a large request are."""

from __future__ import annotations

import pytest

from tfs.servables.joining.signature_queues import CALL_S, portion_rows


@pytest.mark.parametrize(
    ("batch_s", "expected"),
    [
        (0.0, None),  # nothing is known
        (CALL_S, None),
        (
            0.6 * CALL_S,
            None,
        ),  # hardly larger ones would only keep rows from being joined
        (CALL_S / 8, 256),
        (1e-9, 1024),  # not far beyond measured sizes
    ],
)
def test_portions_of_a_small_model_take_what_its_batches_promise(
    batch_s: float, expected: int | None
) -> None:
    """Where batches take long, requests are spread over them."""
    assert portion_rows(32, batch_s) == expected
