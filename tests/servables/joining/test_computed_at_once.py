"""Requests that are computed as they come, past the queues, where the model can do that."""

from __future__ import annotations

from tests.servables.joining.batched_sums import (
    BatchedSums,
    PromptSums,
    error_of,
    outputs_of,
)
from tests.tensors import floats, floats_of
from tfs.core.errors import (
    FailedPrecondition,
    InvalidArgument,
    ServingError,
)
from tfs.core.servable import (
    InferenceTask,
    Outcome,
    Tensors,
)
from tfs.core.signature import DEFAULT_SIGNATURE


def compute_at_once(
    at: BatchedSums, inputs: Tensors, num_rows: int, num_tasks: int = 1
) -> Outcome | None:
    return at.batched.compute_now(
        DEFAULT_SIGNATURE, lambda: inputs, num_rows, num_tasks
    )


def test_requests_are_computed_at_once_and_counted_as_a_batch() -> None:
    """Past an idle queue goes what would have been a batch; one's error is its own."""
    at = BatchedSums(PromptSums())
    at.submit({"x": floats((1, 2), 1, 2)})  # makes the queue
    at.step()
    outcome = compute_at_once(at, {"x": floats((3, 2), 3, 4, 0, 1, 2, 2)}, 3, 3)
    assert not isinstance(outcome, ServingError | None)
    assert floats_of(outcome["sum"]) == [7, 1, 4]
    failed = compute_at_once(at, {"x": floats((2, 2), 1, 1, -1, 1)}, 2)
    assert isinstance(failed, InvalidArgument)
    (report,) = at.batched.report(DEFAULT_SIGNATURE)
    counts = report.counts
    assert (counts.num_batches, counts.num_rows) == (3, 6)
    assert (counts.num_tasks, counts.num_failed_tasks) == (5, 1)


def test_what_cannot_be_computed_at_once_is_left_alone() -> None:
    """A busy model, a task that waits, too many rows: nothing is done, nothing counted.

    Nor is a batch that failed: its tasks are to be told apart.
    """
    inner = PromptSums()
    at = BatchedSums(inner)
    inputs = {"x": floats((1, 2), 1, 2)}
    assert compute_at_once(at, inputs, 1) is None  # no queue yet
    _, first = at.submit(inputs)
    assert compute_at_once(at, inputs, 1) is None  # it was before
    at.step()
    assert floats_of(outputs_of(first)["sum"]) == [3]
    inner.is_busy = True
    assert compute_at_once(at, inputs, 1) is None
    inner.is_busy = False
    assert compute_at_once(at, {"x": floats((5, 2), *range(10))}, 5) is None
    assert compute_at_once(at, {"x": floats((2, 2), 1, 1, -1, 1)}, 2, 2) is None
    (report,) = at.batched.report(DEFAULT_SIGNATURE)
    assert (report.counts.num_batches, report.counts.num_failed_tasks) == (1, 0)
    at.batched.close()
    assert compute_at_once(at, inputs, 1) is None


def test_wrong_outputs_of_a_request_computed_at_once_fail_it() -> None:
    """They are looked at as those of any batch."""

    class Wrong(PromptSums):
        def compute(self, task: InferenceTask) -> Outcome:
            return {"sum": floats((2,), 1, 2)}

    at = BatchedSums(Wrong())
    _, told = at.submit({"x": floats((1, 2), 1, 2)})
    at.step()
    now = compute_at_once(at, {"x": floats((1, 2), 1, 2)}, 1)
    assert isinstance(now, FailedPrecondition)
    assert now.message == error_of(told).message
