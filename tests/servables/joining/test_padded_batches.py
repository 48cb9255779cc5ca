"""Requests of different lengths: padded and masked to be joined, or kept apart."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from batching.batching_options import BatchingOptions
from tests.servables.joining.batched_sums import (
    BatchedSums,
    Sums,
    options_of,
    outputs_of,
    signature_of,
)
from tests.tensors import floats, floats_of
from tfs.core.dtype import FLOAT32, INT64
from tfs.core.servable import InferenceTask, Outcome, Tensors
from tfs.core.signature import DEFAULT_SIGNATURE, Method, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.core.version.model_profile import ModelProfile, SignatureProfile
from tfs.servables.joining.batched import BatchedServable


def test_batches_are_padded_with_rows_of_their_own() -> None:
    """Padding repeats rows of the batch, so that no model meets values it never saw
    (batching_session_test: AllowedBatchSizesRequirePadding).
    """
    at = BatchedSums(options=options_of(allowed_rows=(2, 4)))
    _, told = at.submit({"x": floats((3, 2), 1, 2, 3, 4, 5, 6)})
    at.step()
    assert at.inner.seen[0].num_rows == 4
    assert at.inner.seen[0].inputs["x"] == floats((4, 2), 1, 2, 3, 4, 5, 6, 1, 2)
    assert outputs_of(told)["sum"] == floats((3,), 3, 7, 11)


def test_padding_goes_to_a_size_that_was_measured_to_be_cheaper() -> None:
    """Batches are padded to a cheaper size even if no sizes are configured."""
    measured = SignatureProfile(
        rows_independent=True, call_s_by_rows={1: 1.0, 3: 5.0, 4: 2.0}
    )
    profile = ModelProfile(signatures={DEFAULT_SIGNATURE: measured})
    at = BatchedSums(profile=profile)
    at.submit({"x": floats((3, 2), *range(6))})
    at.step()
    assert at.inner.seen[0].num_rows == 4


RAGGED = {
    "x": TensorSpec(FLOAT32, (-1, -1), pad=0.0, mask="mask"),
    "mask": TensorSpec(INT64, (-1, -1)),
}


def test_ragged_requests_are_padded_and_masked() -> None:
    """batching_session_test: BatchingWithPadding; here the pad value is the
    signature's, and the mask says what was padded.
    """
    at = BatchedSums(Sums(signature_of(RAGGED)))

    def row(*numbers: float) -> Tensors:
        ones = array("q", [1] * len(numbers)).tobytes()
        return {
            "x": floats((1, len(numbers)), *numbers),
            "mask": TensorView(INT64, (1, len(numbers)), ones),
        }

    _, short = at.submit(row(1))
    _, long = at.submit(row(1, 2, 3))
    at.step()
    (seen,) = at.inner.seen
    assert seen.inputs["x"] == floats((2, 3), 1, 0, 0, 1, 2, 3)
    assert bytes(seen.inputs["mask"].data) == array("q", [1, 0, 0, 1, 1, 1]).tobytes()  # type: ignore[arg-type]
    assert floats_of(outputs_of(short)["sum"]) == [1]
    assert floats_of(outputs_of(long)["sum"]) == [6]


def test_lengths_are_not_joined_where_padding_was_seen_to_change_answers() -> None:
    """Equal lengths still are; the status says why."""
    at = BatchedSums(Sums(signature_of(RAGGED)))
    measured = SignatureProfile(rows_independent=True, why_padding="output 'y' changed")
    profile = ModelProfile(signatures={DEFAULT_SIGNATURE: measured})
    at.batched = BatchedServable(at.inner, at.scheduler, at.loop, options_of(), profile)
    for numbers in ((1,), (2, 3), (4, 5)):
        ones = array("q", [1] * len(numbers)).tobytes()
        mask = TensorView(INT64, (1, len(numbers)), ones)
        at.submit({"x": floats((1, len(numbers)), *numbers), "mask": mask})
    at.step()
    assert [seen.inputs["x"].shape for seen in at.inner.seen] == [(1, 1), (2, 2)]
    (why,) = at.batched.reserves.values()
    assert "only equal lengths" in why


def test_a_version_that_is_trusted_without_proof_says_so() -> None:
    """Batched, because its own parameters ask for it where nothing is measured."""
    (why,) = BatchedSums().batched.reserves.values()
    assert "nothing showed its rows to be independent" in why


def test_a_mask_left_out_is_made() -> None:
    """Callers that send no mask get a right one when their rows are padded."""
    signature = signature_of(
        RAGGED, defaults={"mask": TensorView(INT64, (1, 1), bytes(8))}
    )
    at = BatchedSums(Sums(signature))
    at.submit({"x": floats((1, 1), 1)})
    at.submit({"x": floats((1, 2), 1, 2)})
    at.step()
    assert at.inner.seen[0].inputs["mask"] == TensorView(
        INT64, (2, 2), array("q", [1, 0, 1, 1]).tobytes()
    )


def test_a_default_mask_gives_way_to_the_one_that_padding_asks_for() -> None:
    """Handlers fill in defaults: callers that send no mask must not get the neighbours'
    padding into their answers. What was not padded keeps the default.
    """
    ones = TensorView(INT64, (1, 1), (1).to_bytes(8, "little"))
    signature = signature_of(RAGGED, defaults={"mask": ones})
    at = BatchedSums(Sums(signature))
    for lengths in ((1, 2), (2, 2)):
        for length in lengths:
            row = {"x": floats((1, length), *range(1, length + 1))}
            at.submit(signature.with_defaults(row), 1)
        at.step()
    padded, even = at.inner.seen
    assert padded.inputs["mask"] == TensorView(
        INT64, (2, 2), array("q", [1, 0, 1, 1]).tobytes()
    )
    assert even.inputs["mask"] is ones


def test_a_mask_that_was_sent_is_filled_up_with_zeros() -> None:
    """Whether callers may leave it out or not: what they say of their own rows holds."""
    zeros = TensorView(INT64, (1, 1), bytes(8))
    for signature in (
        signature_of(RAGGED),
        signature_of(RAGGED, defaults={"mask": zeros}),
    ):
        at = BatchedSums(Sums(signature))
        for numbers, marks in (((1, 2), (1, 0)), ((1, 2, 3), (1, 1, 0))):
            shape = (1, len(marks))
            mask = TensorView(INT64, shape, array("q", marks).tobytes())
            at.submit({"x": floats(shape, *numbers), "mask": mask})
        at.step()
        (seen,) = at.inner.seen
        assert seen.inputs["mask"] == TensorView(
            INT64, (2, 3), array("q", [1, 0, 0, 1, 1, 0]).tobytes()
        )


def test_variable_lengths_are_padded_as_tensorflow_serving_does_if_asked_to() -> None:
    """pad_variable_length_inputs pads with each tensor's first element."""
    options = BatchingOptions(pads_variable_length=True, batches_unproven=True)
    inner = Sums(signature_of({"x": TensorSpec(FLOAT32, (-1, -1))}))
    at = BatchedSums(inner, options)
    at.submit({"x": floats((1, 1), 5)})
    at.submit({"x": floats((1, 2), 1, 2)})
    at.step()
    assert at.inner.seen[0].inputs["x"] == floats((2, 2), 5, 5, 1, 2)


def test_a_much_longer_request_is_not_joined_with_short_ones() -> None:
    """It would make each of them as long as itself, and their batch a thousandfold."""
    at = BatchedSums(
        Sums(signature_of({"x": TensorSpec(FLOAT32, (-1, -1), pad=0)})),
        options_of(max_batch_rows=8),
    )
    lengths = (2, 100_000, 250, 900, 260, 70_000)
    tolds = [at.submit({"x": floats((1, n), *[1.0] * n)})[1] for n in lengths]
    at.step()
    assert [floats_of(outputs_of(told)["sum"]) for told in tolds] == [
        [float(n)] for n in lengths
    ]
    shapes = [task.inputs["x"].shape for task in at.inner.seen]
    assert sum(rows * length for rows, length in shapes) <= 1.2 * sum(lengths)


def test_lengths_are_padded_to_their_bucket() -> None:
    """With buckets short and long requests do not share a batch."""
    options = BatchingOptions(length_buckets=(2, 8), batches_unproven=True)
    inner = Sums(signature_of({"x": TensorSpec(FLOAT32, (-1, -1), pad=0.0)}))
    at = BatchedSums(inner, options)
    for length in (1, 2, 3, 9):
        at.submit({"x": floats((1, length), *range(length))})
    at.step()
    assert sorted(task.inputs["x"].shape for task in inner.seen) == [
        (1, 8), (1, 9), (2, 2),
    ]  # fmt: skip


class Echo(Sums):
    """Answers each element by itself."""

    def compute(self, task: InferenceTask) -> Outcome:
        return {"y": task.inputs["x"]}


@pytest.mark.parametrize("buckets", [(), (4, 8)])
def test_outputs_are_cut_to_each_request_s_length_where_the_signature_says_so(
    buckets: tuple[int, ...],
) -> None:
    """What a model answers for padding reaches nobody, whatever the padding is to."""
    signature = Signature(
        Method.PREDICT,
        {"x": TensorSpec(FLOAT32, (-1, -1), pad=0.0)},
        {"y": TensorSpec(FLOAT32, (-1, -1), length_of="x")},
    )
    options = replace(options_of(), length_buckets=buckets)
    at = BatchedSums(Echo(signature), options)
    given = [floats((1, n), *range(1, n + 1)) for n in (3, 2, 3)]
    tolds = [at.submit({"x": view})[1] for view in given]
    at.step()
    assert [outputs_of(told)["y"] for told in tolds] == given
    _, alone = at.submit({"x": given[0]})
    at.step()
    assert outputs_of(alone)["y"] == given[0]
    assert len(at.inner.seen) == 2
