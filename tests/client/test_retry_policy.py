"""tfs.client.retry."""

from __future__ import annotations

import pytest

from tfs.client.retry_policy import RetryPolicy
from tfs.core.errors import InvalidArgument, NotFound, ServingError, Unavailable

POLICY = RetryPolicy(max_attempts=3, first_pause_s=0.1, pause_factor=2.0)


@pytest.mark.parametrize(
    ("error", "num_attempts", "remaining_s", "idempotent", "expected"),
    [
        (Unavailable("full", retry_after_s=0.5), 1, 10.0, False, 0.5),
        (Unavailable("full", retry_after_s=0.5), 1, 0.4, False, None),
        (Unavailable("full", retry_after_s=0.5), 3, 10.0, False, None),
        (Unavailable("broken"), 1, 10.0, False, None),
        (Unavailable("broken"), 1, 10.0, True, 0.1),
        (Unavailable("broken"), 2, 10.0, True, 0.2),
        (NotFound("no model"), 1, 10.0, True, None),
    ],
)
def test_a_call_is_repeated_only_when_that_is_safe(
    error: ServingError,
    num_attempts: int,
    remaining_s: float,
    idempotent: bool,
    expected: float | None,
) -> None:
    """A turned-away call is repeated as hinted, a broken one only if idempotent."""
    pause_s = POLICY.pause_s(error, num_attempts, remaining_s, is_idempotent=idempotent)
    assert pause_s == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_attempts", 0),
        ("first_pause_s", -0.1),
        ("pause_factor", 0.5),
        ("longest_pause_s", -1.0),
        ("longest_pause_s", float("nan")),
    ],
)
def test_a_senseless_policy_is_refused(field: str, value: float) -> None:
    """Options are checked on creation, and the error names the field."""
    with pytest.raises(InvalidArgument, match=f"{field} must be at least"):
        RetryPolicy(**{field: value})  # type: ignore[arg-type]  # some are whole
