"""Requests of more rows than a batch has, and batches without configured sizes."""

from __future__ import annotations

from dataclasses import replace

from tests.servables.joining.batched_sums import (
    BatchedSums,
    PromptSums,
    Sums,
    error_of,
    options_of,
    outputs_of,
    signature_of,
)
from tests.tensors import floats, floats_of
from tfs.core.dtype import FLOAT32
from tfs.core.errors import (
    InvalidArgument,
    InvalidItems,
    ServingError,
    Unavailable,
)
from tfs.core.servable import (
    InferenceTask,
    Outcome,
    Tensors,
)
from tfs.core.signature import DEFAULT_SIGNATURE, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.core.version.model_profile import ModelProfile, SignatureProfile
from tfs.servables.joining.batched import BatchedServable


def test_a_large_request_is_split_and_joined() -> None:
    """A request larger than a batch is computed in parts and answered whole
    (batching_session_test: BatchingWithLargeBatch).
    """
    at = BatchedSums(options=options_of(splits=True))
    _, first = at.submit({"x": floats((3, 2), *range(6))})
    _, large = at.submit({"x": floats((7, 2), *range(14))})
    at.step()
    while at.scheduler.num_in_flight or len(at.inner.seen) < 3:
        at.step()
    assert [task.num_rows for task in at.inner.seen] == [4, 4, 2]
    assert floats_of(outputs_of(first)["sum"]) == [1, 5, 9]
    assert floats_of(outputs_of(large)["sum"]) == [1, 5, 9, 13, 17, 21, 25]
    assert len(outputs_of(large)["name"].data) == 7


def test_the_parts_of_a_request_give_the_outputs_that_it_asked_for() -> None:
    """A part that is a batch of its own may be answered with all outputs, and one that
    shares a batch with those of its filter: the others are left out of both.
    """
    at = BatchedSums(PromptSums(), options_of(splits=True))
    _, large = at.submit({"x": floats((7, 2), *range(14))}, output_filter=("sum",))
    _, other = at.submit({"x": floats((1, 2), 3, 4)})
    while at.scheduler.num_in_flight or not (large and other):
        at.step()
    assert [task.num_rows for task in at.inner.seen] == [4, 4]
    assert outputs_of(large).keys() == {"sum"}
    assert floats_of(outputs_of(large)["sum"]) == [1, 5, 9, 13, 17, 21, 25]
    assert outputs_of(other).keys() == {"sum", "name"}


def test_a_request_larger_than_the_limit_is_invalid(at: BatchedSums) -> None:
    """Without splitting, max_batch_size bounds a request."""
    _, told = at.submit({"x": floats((5, 2), *range(10))})
    assert isinstance(error_of(told), InvalidArgument)


def test_a_split_request_fails_when_a_part_does() -> None:
    """A request whose part fails is answered with that error, once
    (tfrt_saved_model_with_batching_test: PartialTaskFails, SplitInputBasic).
    """
    at = BatchedSums(options=options_of(splits=True))
    _, other = at.submit({"x": floats((2, 2), 1, 2, 3, 4)})
    _, split = at.submit({"x": floats((4, 2), 1, 1, 1, 1, 1, 1, -1, 1)})
    for _ in range(4):
        at.step()
    assert isinstance(error_of(split), InvalidArgument)
    assert floats_of(outputs_of(other)["sum"]) == [3, 7]


SCALED = {"x": TensorSpec(FLOAT32, (-1, 2)), "scale": TensorSpec(FLOAT32, (-1, 1))}
SCALE_1 = floats((1, 1), 1)


def test_an_optional_input_that_was_sent_has_a_row_for_each() -> None:
    """Joined and padded like other rows, among requests that say the same in each; one
    row stands for all, as the default does.
    """
    signature = signature_of(SCALED, defaults={"scale": SCALE_1})
    at = BatchedSums(Sums(signature), options_of(allowed_rows=(4, 8), max_batch_rows=8))

    def request(*scales: float) -> Tensors:
        num = len(scales)
        x = floats((num, 2), *range(2 * num))
        return {"x": x, "scale": floats((num, 1), *scales)}

    def joined(*requests: Tensors) -> list[TensorView]:
        at.inner.seen.clear()
        for inputs in requests:
            at.submit(inputs, inputs["x"].num_rows)
        at.step()
        return [task.inputs["scale"] for task in at.inner.seen]

    assert joined(request(7, 7, 7)) == [floats((4, 1), 7, 7, 7, 7)]
    assert joined(request(7, 7), request(7, 7, 7)) == [floats((8, 1), *[7] * 8)]
    assert joined(request(8, 9), request(8, 9)) == [floats((4, 1), 8, 9, 8, 9)]
    assert joined(request(7), request(7)) == [floats((1, 1), 7)]
    left_out = signature.with_defaults({"x": floats((2, 2), 1, 2, 3, 4)})
    assert joined(left_out, left_out) == [SCALE_1]
    assert len(joined(left_out, request(1), request(1, 1), request(1, 2))) == 4


def test_a_large_request_takes_its_optional_rows_apart_too() -> None:
    """Every portion has as many of them as of the others."""
    at = BatchedSums(
        Sums(signature_of(SCALED, defaults={"scale": SCALE_1})),
        options_of(splits=True),
    )
    at.submit({"x": floats((6, 2), *range(12)), "scale": floats((6, 1), *range(6))})
    at.step()
    while len(at.inner.seen) < 2:
        at.step()
    assert [floats_of(task.inputs["scale"]) for task in at.inner.seen] == [
        [0, 1, 2, 3],
        [4, 5],
    ]


def _unconfigured(at: BatchedSums) -> BatchedServable:
    """Returns a servable whose batching nobody configured, over the fixture's own."""
    measured = SignatureProfile(rows_independent=True, call_s_by_rows={1: 1.0, 512: 2})
    profile = ModelProfile(signatures={DEFAULT_SIGNATURE: measured})
    return BatchedServable(at.inner, at.scheduler, at.loop, None, profile)


def test_without_options_a_request_may_have_any_size() -> None:
    """One that no queue would hold is computed in portions, which others share.

    As upstream, where batching has to be configured to refuse a request for its size.
    """
    at = BatchedSums()
    at.batched = _unconfigured(at)
    num_rows = 10_000
    numbers = [float(row // 2) for row in range(2 * num_rows)]
    _, huge = at.submit({"x": floats((num_rows, 2), *numbers)})
    _, small = at.submit({"x": floats((1, 2), 3, 4)})
    at.step()
    assert floats_of(outputs_of(small)["sum"]) == [7.0]
    assert not huge  # the small one waited for a portion, not for all of it
    for _ in range(num_rows):
        if huge:
            break
        at.step()
    assert floats_of(outputs_of(huge)["sum"]) == [2.0 * n for n in range(num_rows)]
    assert len(outputs_of(huge)["name"].data) == num_rows
    assert max(task.num_rows for task in at.inner.seen) <= 512


def test_beside_small_batches_a_large_request_is_a_few_calls() -> None:
    """Where a batch takes microseconds, three hundred of them take much longer.

    TensorFlow Serving runs a request of any size at once unless batching was configured.
    """
    at = BatchedSums()
    measured = SignatureProfile(
        rows_independent=True, call_s_by_rows={1: 1e-5, 32: 1e-5}
    )
    profile = ModelProfile(signatures={DEFAULT_SIGNATURE: measured})
    at.batched = BatchedServable(at.inner, at.scheduler, at.loop, None, profile)
    num_rows = 10_000
    drained: list[bool] = []
    numbers = [float(row // 2) for row in range(2 * num_rows)]
    _, huge = at.submit({"x": floats((num_rows, 2), *numbers)})
    at.batched.close(lambda: drained.append(True))
    assert not huge
    for _ in range(100):
        at.step()
    assert floats_of(outputs_of(huge)["sum"]) == [2.0 * n for n in range(num_rows)]
    assert len(at.inner.seen) <= 20
    assert drained == [True]  # and not before the last call


def test_closing_lets_a_request_in_portions_end() -> None:
    """It was accepted; what is left of it is computed past the queues that are gone."""
    at = BatchedSums()
    at.batched = _unconfigured(at)
    num_rows = 10_000
    _, huge = at.submit({"x": floats((num_rows, 2), *[1.0] * (2 * num_rows))})
    at.step()
    drained: list[bool] = []
    at.batched.close(lambda: drained.append(bool(huge)))
    for _ in range(num_rows):
        at.step()
        if drained:
            break
    assert floats_of(outputs_of(huge)["sum"]) == [2.0] * num_rows
    assert drained == [True]  # and not before the last call
    _, late = at.submit({"x": floats((num_rows, 2), *[1.0] * (2 * num_rows))})
    assert isinstance(error_of(late), Unavailable)


def test_a_huge_request_ends_with_its_first_fault() -> None:
    """What is left of it is not computed for nobody."""
    at = BatchedSums()
    at.batched = _unconfigured(at)
    numbers = [1.0] * 20_000
    numbers[0] = -1
    _, told = at.submit({"x": floats((10_000, 2), *numbers)})
    for _ in range(20):
        at.step()
    assert isinstance(error_of(told), InvalidArgument)
    assert sum(task.num_rows for task in at.inner.seen) < 10_000


def test_a_row_of_a_split_request_is_named_by_its_place_in_the_request() -> None:
    """Its caller knows nothing of parts."""

    class Refuses(Sums):
        def compute(self, task: InferenceTask) -> Outcome:
            numbers = floats_of(task.inputs["x"])[::2]
            wrong = {row: "is 7" for row, x in enumerate(numbers) if x == 7}
            return InvalidItems(wrong) if wrong else super().compute(task)

    for configured in (True, False):
        at = BatchedSums(Refuses(), options=options_of(splits=True, max_rows=10_000))
        if not configured:
            at.batched = _unconfigured(at)
        numbers = [1.0] * 10_000
        numbers[2 * 4500] = 7
        _, told = at.submit({"x": floats((5000, 2), *numbers)})
        for _ in range(5000):
            at.step()
        error = error_of(told)
        assert isinstance(error, InvalidItems)
        assert list(error.rows) == [4500]


def test_without_options_batches_are_as_large_as_pays() -> None:
    """The measured table decides; nothing measured means a moderate size."""
    measured = SignatureProfile(
        rows_independent=True, call_s_by_rows={1: 1.0, 8: 2.0, 16: 4.0, 64: 40.0}
    )
    profile = ModelProfile(signatures={DEFAULT_SIGNATURE: measured})
    at = BatchedSums()
    batched = BatchedServable(at.inner, at.scheduler, at.loop, None, profile)
    assert batched.queue_options[DEFAULT_SIGNATURE].max_batch_rows == 8


def test_without_measurements_large_rows_are_not_joined() -> None:
    """Rows of megabytes are not joined unmeasured, because copying takes long."""
    signature = signature_of({"x": TensorSpec(FLOAT32, (-1, 3 << 20))})
    at = BatchedSums(Sums(signature))
    measured = SignatureProfile(rows_independent=True)
    profile = ModelProfile(signatures={DEFAULT_SIGNATURE: measured})
    batched = BatchedServable(at.inner, at.scheduler, at.loop, None, profile)
    options = batched.queue_options[DEFAULT_SIGNATURE]
    assert options.max_batch_rows == 1


def test_a_request_larger_than_any_batch_goes_by_itself() -> None:
    """A request that is larger than any batch is computed alone, if allowed."""
    at = BatchedSums()
    at.batched = BatchedServable(
        at.inner, at.scheduler, at.loop, replace(options_of(), max_lone_rows=6)
    )
    _, lone = at.submit({"x": floats((6, 2), *range(12))})
    assert len(lone) == 1
    assert not isinstance(lone[0], ServingError)
    _, refused = at.submit({"x": floats((7, 2), *range(14))})
    assert isinstance(error_of(refused), InvalidArgument)
