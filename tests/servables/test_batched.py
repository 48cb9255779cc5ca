"""Requests joined for a servable, and their rows given back."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batching.batching_options import BatchingOptions, options_from_parameters
from batching.options import QueuePolicy, SchedulerOptions
from batching.shared_scheduler import SharedBatchScheduler
from tests.core.conformance.servable import SERVABLE_CHECKS, ServableCheck
from tests.tensors import floats, floats_of
from tfs.core import stat_names
from tfs.core.batch_queue_options import BatchQueueOptions
from tfs.core.dtype import FLOAT32, INT64, STRING
from tfs.core.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    InvalidItems,
    ServingError,
    Unavailable,
)
from tfs.core.model_profile import ModelProfile, SignatureProfile
from tfs.core.servable import (
    CancelToken,
    InferenceTask,
    MakeInputs,
    OneByOne,
    Outcome,
    Servable,
    Tensors,
)
from tfs.core.servable_id import ServableId
from tfs.core.serving_loop import Phase, ServingLoop
from tfs.core.signature import DEFAULT_SIGNATURE, Method, Signature, TensorSpec
from tfs.core.stats import Stats
from tfs.core.tensor_view import TensorView
from tfs.servables.batched import BatchedServable
from tfs.testing.fake_clock import FakeClock
from tfs.testing.patience import PATIENCE_S

ID = ServableId("sums", 3)


def signature_of(
    inputs: Mapping[str, TensorSpec] | None = None, **more: Any
) -> Signature:
    return Signature(
        Method.PREDICT,
        inputs or {"x": TensorSpec(FLOAT32, (-1, 2))},
        {
            "sum": TensorSpec(FLOAT32, (-1,)),
            "name": TensorSpec(STRING, (-1,)),
        },
        **more,
    )


class Sums(OneByOne):
    """Sums the float inputs of each row, and names the row by its sum.

    Fails like a model would if any number is negative. Answers at once, or when told.
    """

    def __init__(
        self, signature: Signature | None = None, *, held: bool = False
    ) -> None:
        self.id = ID
        self.signatures = {DEFAULT_SIGNATURE: signature or signature_of()}
        self.held = held
        self.seen: list[InferenceTask] = []
        self.waiting: list[InferenceTask] = []

    def submit(self, task: InferenceTask) -> None:
        if task.cancel.error is not None:
            task.on_done(task.cancel.error)
            return
        self.seen.append(task)
        if self.held:
            self.waiting.append(task)
        else:
            task.on_done(self.compute(task))

    def finish(self) -> None:
        task = self.waiting.pop(0)
        task.on_done(self.compute(task))

    def compute(self, task: InferenceTask) -> Outcome:
        if task.inputs.keys() < self.signatures[DEFAULT_SIGNATURE].inputs.keys():
            return InvalidArgument("an input is missing")
        sums = [0.0] * task.num_rows
        for view in task.inputs.values():
            if view.dtype is not FLOAT32:
                continue
            numbers = floats_of(view)
            if any(number < 0 for number in numbers):
                return InvalidArgument("negative numbers are not summed")
            per_row = len(numbers) // max(1, task.num_rows)
            for row in range(task.num_rows):
                sums[row] += sum(numbers[row * per_row : (row + 1) * per_row])
        outputs = {
            "sum": floats((task.num_rows,), *sums),
            "name": TensorView(
                STRING, (task.num_rows,), tuple(b"%g" % number for number in sums)
            ),
        }
        names = task.output_filter or tuple(outputs)
        return {name: outputs[name] for name in names}


class PromptSums(Sums):
    """The same where it is asked for, unless it is busy."""

    is_busy = False

    def compute_now(
        self,
        signature_name: str,
        make_inputs: MakeInputs,
        num_rows: int,
        num_tasks: int,
    ) -> Outcome | None:
        if self.is_busy:
            return None
        assert num_tasks == 1
        signature = self.signatures[signature_name]
        task = InferenceTask(signature_name, signature, make_inputs(), print, num_rows)
        self.seen.append(task)
        return self.compute(task)


UNPROVEN = BatchingOptions(batches_unproven=True)


def options_of(**queue: Any) -> BatchingOptions:
    return BatchingOptions(
        queue=BatchQueueOptions(**{"max_batch_rows": 4, **queue}),
        batches_unproven=True,
    )


class Fixture:
    """A batched servable on a loop that the test steps."""

    def __init__(
        self,
        inner: Sums | None = None,
        options: BatchingOptions | None = None,
        profile: ModelProfile | None = None,
        **scheduler: Any,
    ) -> None:
        self.clock = FakeClock()
        self.loop = ServingLoop(self.clock)
        self.scheduler = SharedBatchScheduler(SchedulerOptions(**scheduler), self.clock)
        self.loop.add_round_hook(self.scheduler.step, Phase.SCHEDULE)
        self.loop.step()
        self.inner = inner or Sums()
        self.batched = BatchedServable(
            self.inner, self.scheduler, self.loop, options or options_of(), profile
        )

    def submit(
        self, inputs: Tensors, num_rows: int | None = None, **more: Any
    ) -> tuple[InferenceTask, list[Outcome]]:
        told: list[Outcome] = []
        if num_rows is None:
            num_rows = next(iter(inputs.values())).num_rows
        more.setdefault("cancel", CancelToken())
        task = InferenceTask(
            DEFAULT_SIGNATURE,
            self.batched.signatures[DEFAULT_SIGNATURE],
            inputs,
            told.append,
            num_rows=num_rows,
            **more,
        )
        self.batched.submit(task)
        return task, told

    def step(self) -> None:
        self.loop.step()

    def close(self) -> None:
        self.loop.close()


@pytest.fixture
def at() -> Any:
    fixture = Fixture()
    yield fixture
    fixture.close()


def outputs_of(told: list[Outcome]) -> Tensors:
    (outcome,) = told
    assert not isinstance(outcome, ServingError), outcome
    return outcome


def error_of(told: list[Outcome]) -> ServingError:
    (outcome,) = told
    assert isinstance(outcome, ServingError)
    return outcome


def test_two_requests_share_one_call(at: Fixture) -> None:
    """Rows are joined in arrival order and each request gets its own back.

    batching_session_test: Basic; tfrt_saved_model_with_batching_test:
    BatchingWithoutPadding.
    """
    _, first = at.submit({"x": floats((2, 2), 1, 2, 3, 4)})
    _, second = at.submit({"x": floats((2, 2), 5, 6, 7, 8)})
    at.step()
    (joined,) = at.inner.seen
    assert joined.inputs["x"] == floats((4, 2), *range(1, 9))
    assert outputs_of(first)["sum"] == floats((2,), 3, 7)
    assert outputs_of(second)["sum"] == floats((2,), 11, 15)
    assert outputs_of(second)["name"].data == (b"11", b"15")


def test_output_rows_are_slices_of_the_batch() -> None:
    """Giving rows back copies none of them, but for very few bytes."""
    at = Fixture(options=options_of(max_batch_rows=400))
    _, first = at.submit({"x": floats((200, 2), *[1] * 400)})
    _, second = at.submit({"x": floats((200, 2), *[5] * 400)})
    at.step()
    at.close()
    views = [outputs_of(told)["sum"].data for told in (first, second)]
    assert all(isinstance(view, memoryview) for view in views)
    assert views[0].obj is views[1].obj  # type: ignore[union-attr]


def test_a_lone_request_goes_through_as_it_came(at: Fixture) -> None:
    """batching_session_test: SingletonBatch. No copy in, no copy out, no wait."""
    x = floats((1, 2), 1, 2)
    task, told = at.submit({"x": x}, output_filter=("name",), deadline_s=2000.0)
    at.step()
    (seen,) = at.inner.seen
    assert seen.inputs["x"] is x
    assert (seen.output_filter, seen.deadline_s) == (("name",), 2000.0)
    assert seen.cancel is task.cancel
    assert outputs_of(told).keys() == {"name"}


def test_batches_are_padded_with_rows_of_their_own() -> None:
    """Padding repeats rows of the batch, so that no model meets values it never saw
    (batching_session_test: AllowedBatchSizesRequirePadding).
    """
    at = Fixture(options=options_of(allowed_rows=(2, 4)))
    _, told = at.submit({"x": floats((3, 2), 1, 2, 3, 4, 5, 6)})
    at.step()
    assert at.inner.seen[0].num_rows == 4
    assert at.inner.seen[0].inputs["x"] == floats((4, 2), 1, 2, 3, 4, 5, 6, 1, 2)
    assert outputs_of(told)["sum"] == floats((3,), 3, 7, 11)
    at.close()


def test_padding_goes_to_a_size_that_was_measured_to_be_cheaper() -> None:
    """Batches are padded to a cheaper size even if no sizes are configured."""
    measured = SignatureProfile(
        rows_independent=True, call_s_by_rows={1: 1.0, 3: 5.0, 4: 2.0}
    )
    profile = ModelProfile(signatures={DEFAULT_SIGNATURE: measured})
    at = Fixture(profile=profile)
    at.submit({"x": floats((3, 2), *range(6))})
    at.step()
    assert at.inner.seen[0].num_rows == 4
    at.close()


def test_each_request_gets_the_outputs_it_asked_for(at: Fixture) -> None:
    """The call computes the union. batching_session_test: SubsetOutputTensors."""
    _, first = at.submit({"x": floats((1, 2), 1, 2)}, output_filter=("sum",))
    _, second = at.submit({"x": floats((1, 2), 3, 4)}, output_filter=("name",))
    at.step()
    assert set(at.inner.seen[0].output_filter) == {"sum", "name"}
    assert outputs_of(first).keys() == {"sum"}
    assert outputs_of(second).keys() == {"name"}
    at.submit({"x": floats((1, 2), 1, 2)}, output_filter=("sum",))
    _, everything = at.submit({"x": floats((1, 2), 1, 2)})
    at.step()
    assert at.inner.seen[1].output_filter == ()
    assert outputs_of(everything).keys() == {"sum", "name"}


def test_inputs_may_come_in_any_order() -> None:
    """Requests that name their inputs in another order are joined all the same
    (batching_session_test: DifferentOrderForInputAndOutputTensors).
    """
    spec = TensorSpec(FLOAT32, (-1,))
    at = Fixture(Sums(signature_of({"a": spec, "b": spec})))
    _, first = at.submit({"a": floats((1,), 1), "b": floats((1,), 10)})
    _, second = at.submit({"b": floats((1,), 20), "a": floats((1,), 2)})
    at.step()
    assert len(at.inner.seen) == 1
    assert at.inner.seen[0].inputs["b"] == floats((2,), 10, 20)
    assert floats_of(outputs_of(first)["sum"]) == [11]
    assert floats_of(outputs_of(second)["sum"]) == [22]
    at.close()


def test_a_large_request_is_split_and_joined() -> None:
    """A request larger than a batch is computed in parts and answered whole
    (batching_session_test: BatchingWithLargeBatch).
    """
    at = Fixture(options=options_of(splits=True))
    _, first = at.submit({"x": floats((3, 2), *range(6))})
    _, large = at.submit({"x": floats((7, 2), *range(14))})
    at.step()
    while at.scheduler.num_in_flight or len(at.inner.seen) < 3:
        at.step()
    assert [task.num_rows for task in at.inner.seen] == [4, 4, 2]
    assert floats_of(outputs_of(first)["sum"]) == [1, 5, 9]
    assert floats_of(outputs_of(large)["sum"]) == [1, 5, 9, 13, 17, 21, 25]
    assert len(outputs_of(large)["name"].data) == 7
    at.close()


def test_a_request_larger_than_the_limit_is_invalid(at: Fixture) -> None:
    """Without splitting, max_batch_size bounds a request."""
    _, told = at.submit({"x": floats((5, 2), *range(10))})
    assert isinstance(error_of(told), InvalidArgument)


def test_one_bad_request_fails_alone(at: Fixture) -> None:
    """Its neighbours in the batch are computed.

    In TensorFlow Serving every task of the batch fails with it.
    """
    _, good = at.submit({"x": floats((1, 2), 1, 2)})
    _, bad = at.submit({"x": floats((1, 2), -1, 2)})
    _, also_good = at.submit({"x": floats((2, 2), 1, 2, 3, 4)})
    at.step()
    at.step()
    assert error_of(bad).message == "negative numbers are not summed"
    assert floats_of(outputs_of(good)["sum"]) == [3]
    assert floats_of(outputs_of(also_good)["sum"]) == [3, 7]


def test_rows_that_a_model_refuses_fail_their_requests_in_one_more_run() -> None:
    """Who names the wrong rows spares the search for them; rows count per request."""

    class Validating(Sums):
        def compute(self, task: InferenceTask) -> Outcome:
            numbers = floats_of(task.inputs["x"])
            wrong = {
                row: "negative"
                for row in range(task.num_rows)
                if min(numbers[2 * row : 2 * row + 2]) < 0
            }
            return InvalidItems(wrong, "sums/3") if wrong else super().compute(task)

    at = Fixture(Validating(), options_of(max_batch_rows=8, allowed_rows=(8,)))
    _, good = at.submit({"x": floats((2, 2), 1, 2, 3, 4)})
    _, bad = at.submit({"x": floats((2, 2), 1, 2, -3, 4)})
    _, worse = at.submit({"x": floats((1, 2), -1, 2)})
    at.step()
    assert error_of(bad).message == "sums/3: row 1 is invalid: negative"
    assert error_of(worse).message == "sums/3: row 0 is invalid: negative"
    assert floats_of(outputs_of(good)["sum"]) == [3, 7]
    assert len(at.inner.seen) == 2
    at.close()


def test_a_split_request_fails_when_a_part_does() -> None:
    """A request whose part fails is answered with that error, once
    (tfrt_saved_model_with_batching_test: PartialTaskFails, SplitInputBasic).
    """
    at = Fixture(options=options_of(splits=True))
    _, other = at.submit({"x": floats((2, 2), 1, 2, 3, 4)})
    _, split = at.submit({"x": floats((4, 2), 1, 1, 1, 1, 1, 1, -1, 1)})
    for _ in range(4):
        at.step()
    assert isinstance(error_of(split), InvalidArgument)
    assert floats_of(outputs_of(other)["sum"]) == [3, 7]
    at.close()


def test_cancelled_and_expired_requests_cost_no_compute() -> None:
    """They leave one by one before the batch runs; the rest of it runs.

    batching_session_test: EnqueuedLongerThanTimeout;
    tfrt_saved_model_with_batching_test: AllTasksExceededDeadline. There the batch
    runs unless all of it is late, and the code is RESOURCE_EXHAUSTED.
    """
    at = Fixture(Sums(held=True))
    at.submit({"x": floats((1, 2), 0, 0)})
    at.step()
    late_s = at.clock.now() + 1.0
    _, late = at.submit({"x": floats((1, 2), 1, 2)}, deadline_s=late_s)
    gone_task, gone = at.submit({"x": floats((1, 2), 3, 4)})
    _, stays = at.submit({"x": floats((1, 2), 5, 6)})
    gone_task.cancel.cancel(Cancelled("gone"))
    at.clock.advance(1.0)
    at.step()
    assert isinstance(error_of(late), DeadlineExceeded)
    at.inner.finish()
    at.step()
    assert isinstance(error_of(gone), Cancelled)
    at.inner.finish()
    assert at.inner.seen[1].inputs["x"] == floats((1, 2), 5, 6)
    assert floats_of(outputs_of(stays)["sum"]) == [11]
    at.close()


def test_requests_of_low_priority_come_last_in_a_batch() -> None:
    """What the caller said of its task is what the queue goes by."""
    at = Fixture(Sums(held=True))
    at.submit({"x": floats((1, 2), 9, 9)})
    at.step()
    at.submit({"x": floats((3, 2), *range(6))}, is_low=True)
    at.submit({"x": floats((2, 2), 1, 1, 2, 2)})
    at.inner.finish()
    at.step()
    assert [task.num_rows for task in at.inner.seen] == [1, 2]
    at.inner.finish()
    at.step()
    assert [task.num_rows for task in at.inner.seen] == [1, 2, 3]
    at.close()


def test_the_batch_has_the_latest_deadline_of_its_requests(at: Fixture) -> None:
    """Nobody's deadline ends a neighbour's computation; none at all if one has none."""
    for deadlines, expected in (((5000.0, 6000.0), 6000.0), ((5000.0, None), None)):
        for deadline_s in deadlines:
            at.submit({"x": floats((1, 2), 1, 2)}, deadline_s=deadline_s)
        at.step()
        assert at.inner.seen[-1].deadline_s == expected


def test_different_shapes_never_share_a_batch() -> None:
    """Without a pad value every shape has a queue of its own.

    batching_session_test: UnequalTensorShapesWithPaddingTurnedOff, where the batch
    fails with FAILED_PRECONDITION.
    """
    at = Fixture(Sums(signature_of({"x": TensorSpec(FLOAT32, (-1, -1))})))
    _, short = at.submit({"x": floats((1, 1), 1)})
    _, long = at.submit({"x": floats((1, 3), 1, 2, 3)})
    at.step()
    assert sorted(task.inputs["x"].shape for task in at.inner.seen) == [(1, 1), (1, 3)]
    assert floats_of(outputs_of(short)["sum"]) == [1]
    assert floats_of(outputs_of(long)["sum"]) == [6]
    at.close()


RAGGED = {
    "x": TensorSpec(FLOAT32, (-1, -1), pad=0.0, mask="mask"),
    "mask": TensorSpec(INT64, (-1, -1)),
}


def test_ragged_requests_are_padded_and_masked() -> None:
    """batching_session_test: BatchingWithPadding; here the pad value is the
    signature's, and the mask says what was padded.
    """
    at = Fixture(Sums(signature_of(RAGGED)))

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
    at.close()


def test_lengths_are_not_joined_where_padding_was_seen_to_change_answers() -> None:
    """Equal lengths still are; the status says why."""
    at = Fixture(Sums(signature_of(RAGGED)))
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
    (why,) = Fixture().batched.reserves.values()
    assert "nothing showed its rows to be independent" in why


def test_a_mask_left_out_is_made() -> None:
    """Callers that send no mask get a right one when their rows are padded."""
    signature = signature_of(
        RAGGED, defaults={"mask": TensorView(INT64, (1, 1), bytes(8))}
    )
    at = Fixture(Sums(signature))
    at.submit({"x": floats((1, 1), 1)})
    at.submit({"x": floats((1, 2), 1, 2)})
    at.step()
    assert at.inner.seen[0].inputs["mask"] == TensorView(
        INT64, (2, 2), array("q", [1, 0, 1, 1]).tobytes()
    )
    at.close()


def test_a_default_mask_gives_way_to_the_one_that_padding_asks_for() -> None:
    """Handlers fill in defaults: callers that send no mask must not get the neighbours'
    padding into their answers. What was not padded keeps the default.
    """
    ones = TensorView(INT64, (1, 1), (1).to_bytes(8, "little"))
    signature = signature_of(RAGGED, defaults={"mask": ones})
    at = Fixture(Sums(signature))
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
    at.close()


def test_a_mask_that_was_sent_is_filled_up_with_zeros() -> None:
    """Whether callers may leave it out or not: what they say of their own rows holds."""
    zeros = TensorView(INT64, (1, 1), bytes(8))
    for signature in (
        signature_of(RAGGED),
        signature_of(RAGGED, defaults={"mask": zeros}),
    ):
        at = Fixture(Sums(signature))
        for numbers, marks in (((1, 2), (1, 0)), ((1, 2, 3), (1, 1, 0))):
            shape = (1, len(marks))
            mask = TensorView(INT64, shape, array("q", marks).tobytes())
            at.submit({"x": floats(shape, *numbers), "mask": mask})
        at.step()
        (seen,) = at.inner.seen
        assert seen.inputs["mask"] == TensorView(
            INT64, (2, 3), array("q", [1, 0, 0, 1, 1, 0]).tobytes()
        )
        at.close()


def test_variable_lengths_are_padded_as_tensorflow_serving_does_if_asked_to() -> None:
    """pad_variable_length_inputs pads with each tensor's first element."""
    options = BatchingOptions(pads_variable_length=True, batches_unproven=True)
    inner = Sums(signature_of({"x": TensorSpec(FLOAT32, (-1, -1))}))
    at = Fixture(inner, options)
    at.submit({"x": floats((1, 1), 5)})
    at.submit({"x": floats((1, 2), 1, 2)})
    at.step()
    assert at.inner.seen[0].inputs["x"] == floats((2, 2), 5, 5, 1, 2)
    at.close()


def test_a_much_longer_request_is_not_joined_with_short_ones() -> None:
    """It would make each of them as long as itself, and their batch a thousandfold."""
    at = Fixture(
        Sums(signature_of({"x": TensorSpec(FLOAT32, (-1, -1), pad=0)})),
        options_of(max_batch_rows=8),
    )
    lengths = (2, 100_000, 250, 900, 260, 70_000)
    tolds = [at.submit({"x": floats((1, n), *[1.0] * n)})[1] for n in lengths]
    at.step()
    assert [floats_of(outputs_of(told)["sum"]) for told in tolds] == [
        [float(n)] for n in lengths
    ]
    shapes = sorted(task.inputs["x"].shape for task in at.inner.seen)
    assert shapes == [(2, 250), (2, 900), (2, 100_000)]
    at.close()


def test_lengths_are_padded_to_their_bucket() -> None:
    """With buckets short and long requests do not share a batch."""
    options = BatchingOptions(length_buckets=(2, 8), batches_unproven=True)
    inner = Sums(signature_of({"x": TensorSpec(FLOAT32, (-1, -1), pad=0.0)}))
    at = Fixture(inner, options)
    for length in (1, 2, 3, 9):
        at.submit({"x": floats((1, length), *range(length))})
    at.step()
    assert sorted(task.inputs["x"].shape for task in inner.seen) == [
        (1, 8), (1, 9), (2, 2),
    ]  # fmt: skip
    at.close()


def test_inputs_that_are_no_rows_must_be_equal_to_be_joined() -> None:
    """What may be left out is a setting, not a row: it stays as it is."""
    signature = signature_of(
        {"x": TensorSpec(FLOAT32, (-1, 2)), "scale": TensorSpec(INT64, (1,))},
        defaults={"scale": TensorView(INT64, (1,), bytes(8))},
    )
    at = Fixture(Sums(signature))
    two = TensorView(INT64, (1,), (2).to_bytes(8, "little"))
    three = TensorView(INT64, (1,), (3).to_bytes(8, "little"))
    for scale in (two, two, three):
        at.submit({"x": floats((1, 2), 1, 2), "scale": scale}, 1)
    at.submit({"x": floats((1, 2), 1, 2)})
    at.step()
    assert sorted(task.num_rows for task in at.inner.seen) == [1, 1, 2]
    joined = next(task for task in at.inner.seen if task.num_rows == 2)
    assert joined.inputs["scale"] == two
    at.close()


SCALED = {"x": TensorSpec(FLOAT32, (-1, 2)), "scale": TensorSpec(FLOAT32, (-1, 1))}
SCALE_1 = floats((1, 1), 1)


def test_an_optional_input_that_was_sent_has_a_row_for_each() -> None:
    """Joined and padded like other rows, among requests that say the same in each; one
    row stands for all, as the default does.
    """
    signature = signature_of(SCALED, defaults={"scale": SCALE_1})
    at = Fixture(Sums(signature), options_of(allowed_rows=(4, 8), max_batch_rows=8))

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
    at.close()


def test_a_large_request_takes_its_optional_rows_apart_too() -> None:
    """Every portion has as many of them as of the others."""
    at = Fixture(
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
    at.close()


def test_large_settings_are_not_compared() -> None:
    """A request with one runs by itself."""
    signature = signature_of(
        {"x": TensorSpec(FLOAT32, (-1, 2)), "table": TensorSpec(INT64, (-1,))},
        defaults={"table": TensorView(INT64, (0,), b"")},
    )
    at = Fixture(Sums(signature))
    table = TensorView(INT64, (1000,), bytes(8000))
    _, told = at.submit({"x": floats((1, 2), 1, 2), "table": table}, 1)
    assert floats_of(outputs_of(told)["sum"]) == [3]
    at.close()


@pytest.mark.parametrize(
    ("signature", "measured", "why"),
    [
        (
            signature_of(),
            SignatureProfile(rows_independent=False, why_dependent="train mode"),
            "its rows depend on each other: train mode",
        ),
        (
            signature_of(),
            SignatureProfile(),
            "its rows were not shown to be independent",
        ),
        (
            signature_of(batched=False),
            SignatureProfile(rows_independent=True),
            "the signature says batched: false",
        ),
    ],
)
def test_what_must_not_be_batched_is_not(
    signature: Signature, measured: SignatureProfile, why: str
) -> None:
    """The reason can be shown; requests are answered one by one."""
    profile = ModelProfile(signatures={DEFAULT_SIGNATURE: measured})
    at = Fixture(Sums(signature), BatchingOptions(), profile)
    assert at.batched.unbatched == {DEFAULT_SIGNATURE: why}
    for _ in range(2):
        _, told = at.submit({"x": floats((1, 2), 1, 2)})
        assert floats_of(outputs_of(told)["sum"]) == [3]
    assert [task.num_rows for task in at.inner.seen] == [1, 1]
    at.close()


def test_a_profile_that_shows_dependence_beats_the_options() -> None:
    """Nobody can configure wrong answers."""
    measured = SignatureProfile(rows_independent=False)
    profile = ModelProfile(signatures={DEFAULT_SIGNATURE: measured})
    at = Fixture(options=UNPROVEN, profile=profile)
    assert "changed with their neighbours" in at.batched.unbatched[DEFAULT_SIGNATURE]
    at.close()


def _unconfigured(at: Fixture) -> BatchedServable:
    """Returns a servable whose batching nobody configured, over the fixture's own."""
    measured = SignatureProfile(rows_independent=True, call_s_by_rows={1: 1.0, 512: 2})
    profile = ModelProfile(signatures={DEFAULT_SIGNATURE: measured})
    return BatchedServable(at.inner, at.scheduler, at.loop, None, profile)


def test_without_options_a_request_may_have_any_size() -> None:
    """One that no queue would hold is computed in portions, which others share.

    As upstream, where batching has to be configured to refuse a request for its size.
    """
    at = Fixture()
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
    at.close()


def test_beside_small_batches_a_large_request_is_a_few_calls() -> None:
    """Where a batch takes microseconds, three hundred of them take much longer.

    TensorFlow Serving runs a request of any size at once unless batching was configured.
    """
    at = Fixture()
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
    at.close()


def test_closing_lets_a_request_in_portions_end() -> None:
    """It was accepted; what is left of it is computed past the queues that are gone."""
    at = Fixture()
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
    at.close()


def test_a_huge_request_ends_with_its_first_fault() -> None:
    """What is left of it is not computed for nobody."""
    at = Fixture()
    at.batched = _unconfigured(at)
    numbers = [1.0] * 20_000
    numbers[0] = -1
    _, told = at.submit({"x": floats((10_000, 2), *numbers)})
    for _ in range(20):
        at.step()
    assert isinstance(error_of(told), InvalidArgument)
    assert sum(task.num_rows for task in at.inner.seen) < 10_000
    at.close()


def test_a_row_of_a_split_request_is_named_by_its_place_in_the_request() -> None:
    """Its caller knows nothing of parts."""

    class Refuses(Sums):
        def compute(self, task: InferenceTask) -> Outcome:
            numbers = floats_of(task.inputs["x"])[::2]
            wrong = {row: "is 7" for row, x in enumerate(numbers) if x == 7}
            return InvalidItems(wrong) if wrong else super().compute(task)

    for configured in (True, False):
        at = Fixture(Refuses(), options=options_of(splits=True, max_rows=10_000))
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
        at.close()


def test_without_options_batches_are_as_large_as_pays() -> None:
    """The measured table decides; nothing measured means a moderate size."""
    measured = SignatureProfile(
        rows_independent=True, call_s_by_rows={1: 1.0, 8: 2.0, 16: 4.0, 64: 40.0}
    )
    profile = ModelProfile(signatures={DEFAULT_SIGNATURE: measured})
    at = Fixture()
    batched = BatchedServable(at.inner, at.scheduler, at.loop, None, profile)
    task = InferenceTask(
        DEFAULT_SIGNATURE,
        at.inner.signatures[DEFAULT_SIGNATURE],
        {"x": floats((1, 2), 1, 2)},
        lambda outcome: None,
    )
    batched.submit(task)
    (queue,) = batched.queues()
    assert queue.waiting.options.max_batch_rows == 8
    at.close()


def test_without_measurements_large_rows_are_not_joined() -> None:
    """Rows of megabytes are not joined unmeasured, because copying takes long."""
    signature = signature_of({"x": TensorSpec(FLOAT32, (-1, 3 << 20))})
    at = Fixture(Sums(signature))
    measured = SignatureProfile(rows_independent=True)
    profile = ModelProfile(signatures={DEFAULT_SIGNATURE: measured})
    batched = BatchedServable(at.inner, at.scheduler, at.loop, None, profile)
    options = batched.queue_options[DEFAULT_SIGNATURE]
    assert options.max_batch_rows == 1
    at.close()


def test_a_request_that_does_not_match_runs_anyway(at: Fixture) -> None:
    """The servable underneath says what is wrong with it.

    batching_session_test: RequestThatDoesntMatchSignatureGetsRunAnyway,
    RequestWithIncompatibleInputTensorSizes.
    """
    _, told = at.submit({"other": floats((1, 2), 1, 2)})
    assert [list(task.inputs) for task in at.inner.seen] == [["other"]]
    assert outputs_of(told)
    _, empty = at.submit({"x": floats((0, 2))}, 0)
    assert outputs_of(empty)["sum"].shape == (0,)
    assert at.scheduler.num_in_flight == 0


def test_signatures_have_queues_of_their_own() -> None:
    """Requests of two signatures never meet.

    batching_session_test: MultipleSignatures, TensorSignatureFromSignatureDef;
    tfrt_saved_model_with_batching_test: MultipleFunctions.
    """
    inner = Sums()
    inner.signatures["other"] = signature_of()
    at = Fixture(inner)
    at.submit({"x": floats((1, 2), 1, 2)})
    told: list[Outcome] = []
    at.batched.submit(
        InferenceTask(
            "other", inner.signatures["other"], {"x": floats((1, 2), 3, 4)}, told.append
        )
    )
    at.step()
    assert [task.signature_name for task in inner.seen] == [DEFAULT_SIGNATURE, "other"]
    assert len(at.batched.queues()) == 2
    at.close()


class Misfit(Sums):
    """Answers with outputs of a wrong shape."""

    def __init__(self, outputs: dict[str, TensorView]) -> None:
        super().__init__()
        self._outputs = outputs

    def compute(self, task: InferenceTask) -> Outcome:
        return self._outputs


@pytest.mark.parametrize(
    ("outputs", "kind", "message"),
    [
        ({"sum": floats((), 1)}, FailedPrecondition, "has 0 dimensions"),
        ({"sum": floats((3,), 1, 2, 3)}, FailedPrecondition, "does not equal the sum"),
        ({"name": floats((2,), 1, 2)}, Internal, "output 'sum' is missing"),
    ],
)
def test_outputs_that_are_not_the_batchs_rows_fail_it(
    outputs: dict[str, TensorView], kind: type[ServingError], message: str
) -> None:
    """Nobody gets rows that may be somebody else's."""
    policy = QueuePolicy(retries_alone=None)
    options = BatchingOptions(policy=policy, batches_unproven=True)
    at = Fixture(Misfit(outputs), options)
    for _ in range(2):
        _, told = at.submit({"x": floats((1, 2), 1, 2)}, output_filter=("sum",))
    at.step()
    assert isinstance(error_of(told), kind)
    assert message in error_of(told).message
    at.close()


def test_an_output_that_a_model_left_out_fails_only_who_asked_for_it() -> None:
    """The batch ends all the same: a device that never gets free serves nobody."""

    class Forgets(Sums):
        def compute(self, task: InferenceTask) -> Outcome:
            outcome = super().compute(task)
            assert not isinstance(outcome, ServingError)
            return {"sum": outcome["sum"]}

    at = Fixture(Forgets())
    _, all_there_is = at.submit({"x": floats((1, 2), 1, 2)})
    _, named = at.submit({"x": floats((1, 2), 1, 2)}, output_filter=("sum", "name"))
    _, other = at.submit({"x": floats((1, 2), 3, 4)}, output_filter=("sum",))
    at.step()
    assert floats_of(outputs_of(all_there_is)["sum"]) == [3.0]
    assert error_of(named).message.endswith("output 'name' is missing")
    assert floats_of(outputs_of(other)["sum"]) == [7.0]
    assert at.scheduler.num_in_flight == 0
    at.close()


def test_closing_computes_what_waits_and_refuses_the_rest() -> None:
    """Unloading drains; the callback comes when the loop holds nothing more."""
    at = Fixture(Sums(held=True))
    _, first = at.submit({"x": floats((1, 2), 1, 2)})
    at.step()
    _, second = at.submit({"x": floats((1, 2), 3, 4)})
    drained: list[bool] = []
    at.batched.close(lambda: drained.append(True))
    _, late = at.submit({"x": floats((1, 2), 5, 6)})
    assert isinstance(error_of(late), Unavailable)
    at.inner.finish()
    at.step()
    assert outputs_of(first)
    assert drained == []
    at.inner.finish()
    assert outputs_of(second)
    assert drained == [True]
    at.close()


def test_closing_what_never_had_a_request_is_immediate(at: Fixture) -> None:
    """There is nothing to drain; so for a servable that batches nothing."""
    drained: list[str] = []
    at.batched.close(lambda: drained.append("idle"))
    unbatched = BatchedServable(
        Sums(signature_of(batched=False)), at.scheduler, at.loop
    )
    unbatched.close(lambda: drained.append("unbatched"))
    assert drained == ["idle", "unbatched"]


def test_invented_shapes_do_not_fill_the_memory() -> None:
    """Idle queues make place; when all are busy a new shape runs unbatched."""
    inner = Sums(signature_of({"x": TensorSpec(FLOAT32, (-1, -1))}), held=True)
    at = Fixture(inner, num_batch_threads=1000)
    for length in range(64):
        at.submit({"x": floats((1, length), *range(length))})
    at.submit({"x": floats((1, 64), *range(64))})
    assert [task.inputs["x"].shape for task in inner.seen] == [(1, 64)]
    at.step()
    while inner.waiting:
        inner.finish()
    at.submit({"x": floats((1, 65), *range(65))})
    assert len(at.batched.queues()) == 1
    at.close()


def test_a_default_that_fits_no_type_is_refused_when_loading() -> None:
    """A pad value that the input cannot hold is found before any request."""
    spec = TensorSpec(INT64, (-1, -1), pad=0.5)
    with pytest.raises(InvalidArgument, match="does not hold"):
        Fixture(Sums(signature_of({"x": spec})))


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=12),
    st.integers(1, 6),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_rows_always_return_to_their_callers(
    sizes: list[int], max_batch_rows: int, held: bool, rng: Any
) -> None:
    """Whatever the sizes, splits and interleavings, each request gets its own sums."""
    inner = Sums(held=held)
    at = Fixture(
        inner,
        options_of(max_batch_rows=max_batch_rows, splits=True, max_rows=1000),
        num_batch_threads=2,
    )
    expected: list[tuple[list[float], list[Outcome]]] = []
    next_value = 0
    for size in sizes:
        numbers = [float(next_value + index) for index in range(2 * size)]
        next_value += 2 * size
        _, told = at.submit({"x": floats((size, 2), *numbers)})
        sums = [numbers[2 * row] + numbers[2 * row + 1] for row in range(size)]
        expected.append((sums, told))
        if rng.random() < 0.5:
            at.step()
        if inner.waiting and rng.random() < 0.5:
            rng.shuffle(inner.waiting)
            inner.finish()
    for _ in range(200):
        at.step()
        if inner.waiting:
            rng.shuffle(inner.waiting)
            inner.finish()
    for sums, told in expected:
        assert floats_of(outputs_of(told)["sum"]) == sums
    at.close()


@pytest.mark.parametrize("check", SERVABLE_CHECKS)
def test_a_batched_servable_keeps_a_servables_promises(check: ServableCheck) -> None:
    """It can stand wherever a servable can, on a loop of its own."""
    loop = ServingLoop()
    scheduler = SharedBatchScheduler()
    loop.add_round_hook(scheduler.step, Phase.SCHEDULE)
    loop.start()

    def make() -> Servable:
        return BatchedServable(Sums(), scheduler, loop, options_of(splits=True))

    try:
        check(make, _inputs)
    finally:
        loop.close()


def _inputs(signature: Signature, num_rows: int) -> Tensors:
    return {"x": floats((num_rows, 2), *range(2 * num_rows))}


def test_answers_may_come_from_any_thread() -> None:
    """An interpreter's thread ends a batch by a post to the loop."""

    class Elsewhere(Sums):
        def submit(self, task: InferenceTask) -> None:
            thread = threading.Thread(target=lambda: Sums.submit(self, task))
            thread.start()

    loop = ServingLoop()
    scheduler = SharedBatchScheduler()
    loop.add_round_hook(scheduler.step, Phase.SCHEDULE)
    loop.start()
    batched = BatchedServable(Elsewhere(), scheduler, loop, options_of())
    done = threading.Event()
    told: list[Outcome] = []

    def on_done(outcome: Outcome) -> None:
        told.append(outcome)
        done.set()

    task = InferenceTask(
        DEFAULT_SIGNATURE,
        batched.signatures[DEFAULT_SIGNATURE],
        {"x": floats((1, 2), 1, 2)},
        on_done,
    )
    batched.submit(task)
    assert done.wait(PATIENCE_S)
    assert floats_of(outputs_of(told)["sum"]) == [3]
    drained = threading.Event()
    batched.close(drained.set)
    assert drained.wait(PATIENCE_S)
    loop.close()


@pytest.mark.parametrize(
    ("num_batch_threads", "max_in_flight", "num_running"),
    [(2, None, 2), (None, 3, 3), (2, 3, 2), (3, 1, 1), (None, None, 4)],
)
def test_batches_in_flight_keep_to_the_tightest_bound(
    num_batch_threads: int | None, max_in_flight: int | None, num_running: int
) -> None:
    """What the parameters allow, what the place allows, what the device takes."""
    at = Fixture(Sums(held=True), num_batch_threads=4)
    options = replace(options_of(max_batch_rows=1), num_batch_threads=num_batch_threads)
    at.batched = BatchedServable(
        at.inner, at.scheduler, at.loop, options, max_in_flight=max_in_flight
    )
    for _ in range(6):
        at.submit({"x": floats((1, 2), 1, 2)})
    at.step()
    assert len(at.inner.waiting) == num_running
    at.close()


def test_parameters_of_tensorflow_serving_work_unchanged() -> None:
    """What its file says is what happens."""
    options = options_from_parameters(
        max_batch_size=4, allowed_batch_sizes=[2, 4], batch_timeout_micros=1_000_000
    )
    measured = SignatureProfile(rows_independent=True)
    profile = ModelProfile(signatures={DEFAULT_SIGNATURE: measured})
    at = Fixture(options=options, profile=profile)
    _, told = at.submit({"x": floats((1, 2), 1, 2)})
    at.step()
    assert at.inner.seen == []
    at.clock.advance(1.0)
    at.step()
    assert at.inner.seen[0].num_rows == 2
    assert floats_of(outputs_of(told)["sum"]) == [3]
    at.close()


def test_what_batching_comes_to_can_be_read() -> None:
    """Sizes, padding, waits and ends, per queue and for exporters.

    batching_session_test: the metrics of AllowedBatchSizesRequirePadding.
    """
    at = Fixture()
    stats = Stats()
    measured = SignatureProfile(rows_independent=True)
    profile = ModelProfile(signatures={DEFAULT_SIGNATURE: measured})
    at.batched = BatchedServable(
        at.inner, at.scheduler, at.loop, options_of(allowed_rows=(4,)), profile, stats
    )
    assert at.batched.report() == []
    assert list(stats.histograms()) == []
    assert {value for _, _, value in stats.counters()} == {0}
    gone, _ = at.submit({"x": floats((1, 2), 1, 2)})
    gone.cancel.cancel(Cancelled("gone"))
    at.submit({"x": floats((2, 2), 1, 2, 3, 4)})
    at.submit({"x": floats((5, 2), *range(10))})
    at.step()
    (report,) = at.batched.report()
    assert report.signature == DEFAULT_SIGNATURE
    assert report.input_names == ("x",)
    assert (report.max_batch_rows, report.allowed_rows) == (4, (4,))
    assert (report.num_batches, report.num_rows, report.num_padding_rows) == (1, 2, 2)
    assert (report.num_completed_tasks, report.num_failed_tasks) == (1, 0)
    assert (report.num_refused_tasks, report.num_cancelled_tasks) == (1, 1)
    assert report.batch_fill.total == 0.5
    labels = (("model", "sums"), ("signature", DEFAULT_SIGNATURE), ("version", "3"))
    counters = {(name, found): value for name, found, value in stats.counters()}
    assert counters["batches", labels] == 1
    assert counters["batch_tasks", (("end", "refused"), *labels)] == 1
    histograms = {name: found for name, _, found in stats.histograms()}
    assert histograms["batch_rows"].mean == 2
    assert "batch_depth_tasks" in histograms
    at.batched.close()
    assert list(stats.counters()) == []
    assert list(stats.histograms()) == []
    at.close()


def test_published_numbers_keep_no_version_alive() -> None:
    """A load that fails after its queues were made never closes them."""
    at = Fixture()
    stats = Stats()
    BatchedServable(at.inner, at.scheduler, at.loop, options_of(), None, stats)
    assert list(stats.counters()) == []
    at.close()


def test_a_request_larger_than_any_batch_goes_by_itself() -> None:
    """A request that is larger than any batch is computed alone, if allowed."""
    at = Fixture()
    at.batched = BatchedServable(
        at.inner, at.scheduler, at.loop, replace(options_of(), max_lone_rows=6)
    )
    _, lone = at.submit({"x": floats((6, 2), *range(12))})
    assert len(lone) == 1
    assert not isinstance(lone[0], ServingError)
    _, refused = at.submit({"x": floats((7, 2), *range(14))})
    assert isinstance(error_of(refused), InvalidArgument)


def test_a_queue_that_cannot_be_made_is_the_requests_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task that came is always answered, whatever breaks before it waits."""
    at = Fixture()

    def refuse(*_: object, **__: object) -> None:
        raise MemoryError("no room for a queue")

    monkeypatch.setattr(at.scheduler, "add_queue", refuse)
    _, told = at.submit({"x": floats((1, 2), 0, 0)})
    assert "no room for a queue" in str(error_of(told))


def test_numbers_go_on_when_a_version_gets_another_form() -> None:
    """Re-placed, a version has new queues, which count on; totals never fall."""
    at = Fixture()
    stats = Stats()

    def made(max_batch_rows: int) -> BatchedServable:
        options = options_of(max_batch_rows=max_batch_rows)
        return BatchedServable(at.inner, at.scheduler, at.loop, options, None, stats)

    def numbers() -> tuple[int, int]:
        (report,) = at.batched.report()
        assert sum(report.batch_rows.counts) == report.num_batches
        (total,) = (
            value for name, _, value in stats.counters() if name == stat_names.BATCHES
        )
        assert total == report.num_batches
        return report.num_completed_tasks, report.num_rows

    at.batched = made(8)
    at.submit({"x": floats((7, 2), *range(14))})
    at.step()
    assert numbers() == (1, 7)
    for max_batch_rows in (4, 2):
        before, at.batched = at.batched, made(max_batch_rows)
        before.close(heir=at.batched)
        at.step()
        assert numbers() == (1, 7)
    at.submit({"x": floats((2, 2), *range(4))})
    at.step()
    assert numbers() == (2, 9)
    (histogram,) = (
        snapshot
        for name, _, snapshot in stats.histograms()
        if name == stat_names.BATCH_ROWS
    )
    assert sum(histogram.counts) == 2
    assert histogram.total == 9


def test_what_goes_past_the_queues_is_counted_on_by_the_next_form() -> None:
    """A large request counts when it comes, its calls when they are made.

    Also those that it is still to make when the version gets another form.
    """
    at = Fixture()
    stats = Stats()
    measured = SignatureProfile(
        rows_independent=True, call_s_by_rows={1: 1e-5, 32: 1e-5}
    )
    profile = ModelProfile(signatures={DEFAULT_SIGNATURE: measured})

    def made() -> BatchedServable:
        return BatchedServable(at.inner, at.scheduler, at.loop, None, profile, stats)

    def counters() -> dict[str, float]:
        return {name: value for name, _, value in stats.counters() if "bypass" in name}

    at.batched = made()
    assert set(counters().values()) == {0}
    _, huge = at.submit({"x": floats((10_000, 2), *[1.0] * 20_000)})
    before, at.batched = at.batched, made()
    before.close(heir=at.batched)
    for _ in range(100):
        at.step()
    outputs_of(huge)
    assert counters() == {
        stat_names.BYPASS_TASKS: 1,
        stat_names.BYPASS_ROWS: 10_000,
        stat_names.BYPASS_CALLS: len(at.inner.seen),
    }
    at.submit({"x": floats((1, 2), 3, 4)})
    at.step()
    assert counters()[stat_names.BYPASS_TASKS] == 1
    assert at.batched.bypass("no such signature").num_requests == 0
    at.close()


# -- where the model can be called at once --------------------------------------------


def compute_at_once(
    at: Fixture, inputs: Tensors, num_rows: int, num_tasks: int = 1
) -> Outcome | None:
    return at.batched.compute_now(
        DEFAULT_SIGNATURE, lambda: inputs, num_rows, num_tasks
    )


def test_requests_are_computed_at_once_and_counted_as_a_batch() -> None:
    """Past an idle queue goes what would have been a batch; one's error is its own."""
    at = Fixture(PromptSums())
    at.submit({"x": floats((1, 2), 1, 2)})  # makes the queue
    at.step()
    outcome = compute_at_once(at, {"x": floats((3, 2), 3, 4, 0, 1, 2, 2)}, 3, 3)
    assert not isinstance(outcome, ServingError | None)
    assert floats_of(outcome["sum"]) == [7, 1, 4]
    failed = compute_at_once(at, {"x": floats((2, 2), 1, 1, -1, 1)}, 2)
    assert isinstance(failed, InvalidArgument)
    (report,) = at.batched.report()
    assert (report.num_batches, report.num_rows) == (3, 6)
    assert (report.num_completed_tasks, report.num_failed_tasks) == (5, 1)
    at.close()


def test_what_cannot_be_computed_at_once_is_left_alone() -> None:
    """A busy model, a task that waits, too many rows: nothing is done, nothing counted.

    Nor is a batch that failed: its tasks are to be told apart.
    """
    inner = PromptSums()
    at = Fixture(inner)
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
    (report,) = at.batched.report()
    assert (report.num_batches, report.num_failed_tasks) == (1, 0)
    at.batched.close()
    assert compute_at_once(at, inputs, 1) is None
    at.close()


def test_wrong_outputs_of_a_request_computed_at_once_fail_it() -> None:
    """They are looked at as those of any batch."""

    class Wrong(PromptSums):
        def compute(self, task: InferenceTask) -> Outcome:
            return {"sum": floats((2,), 1, 2)}

    at = Fixture(Wrong())
    _, told = at.submit({"x": floats((1, 2), 1, 2)})
    at.step()
    now = compute_at_once(at, {"x": floats((1, 2), 1, 2)}, 1)
    assert isinstance(now, FailedPrecondition)
    assert now.message == error_of(told).message
    at.close()
