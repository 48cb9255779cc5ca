"""Options that cannot work are refused when they are made."""

from __future__ import annotations

from typing import Any

import pytest

from batching.batching_options import QueuePolicy, SchedulerOptions
from batching.deadline_window import WindowOptions
from tests.batching.stepped_scheduler import SteppedScheduler
from tfs.core.errors import (
    FailedPrecondition,
    InvalidArgument,
)


def test_a_window_and_splitting_exclude_each_other() -> None:
    """A window ranks whole tasks."""
    with pytest.raises(FailedPrecondition):
        SteppedScheduler().add(policy=QueuePolicy(window=WindowOptions()), splits=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_batch_threads": 0}, "num_batch_threads must be positive; was 0"),
        ({"quantum_s": 0.0}, "quantum_s must be positive"),
    ],
)
def test_scheduler_options_that_cannot_work_are_refused(
    options: dict[str, Any], message: str
) -> None:
    """Options that no scheduler could follow are refused when they are made
    (adaptive_shared_batch_scheduler_test: BadOptions).
    """
    with pytest.raises(InvalidArgument, match=message):
        SchedulerOptions(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"weight": 0.0},
        {"weight": 1e-310},
        {"weight": float("inf")},
        {"weight": float("nan")},
        {"max_in_flight": 0},
    ],
)
def test_policies_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    """Options are checked when made."""
    with pytest.raises(InvalidArgument):
        QueuePolicy(**options)
