"""Requests joined for a servable, and their rows given back."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batching.batching_options import BatchingOptions, options_from_parameters
from batching.shared_scheduler import SharedBatchScheduler
from tests.core.conformance.servable import SERVABLE_CHECKS, ServableCheck
from tests.servables.joining.batched_sums import (
    UNPROVEN,
    BatchedSums,
    Sums,
    error_of,
    options_of,
    outputs_of,
    signature_of,
)
from tests.tensors import floats, floats_of
from tfs.core import stat_names
from tfs.core.dtype import FLOAT32, INT64
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
from tfs.core.loop.serving_loop import Phase, ServingLoop
from tfs.core.servable import (
    InferenceTask,
    Outcome,
    Servable,
    Tensors,
)
from tfs.core.signature import DEFAULT_SIGNATURE, Signature, TensorSpec
from tfs.core.stats import Stats
from tfs.core.tensor_view import TensorView
from tfs.core.version.model_profile import ModelProfile, SignatureProfile
from tfs.servables.joining.batched import BatchedServable
from tfs.testing.patience import PATIENCE_S


def test_two_requests_share_one_call(at: BatchedSums) -> None:
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
    at = BatchedSums(options=options_of(max_batch_rows=400))
    _, first = at.submit({"x": floats((200, 2), *[1] * 400)})
    _, second = at.submit({"x": floats((200, 2), *[5] * 400)})
    at.step()
    views = [outputs_of(told)["sum"].data for told in (first, second)]
    assert all(isinstance(view, memoryview) for view in views)
    assert views[0].obj is views[1].obj  # type: ignore[union-attr]


def test_a_lone_request_goes_through_as_it_came(at: BatchedSums) -> None:
    """batching_session_test: SingletonBatch. No copy in, no copy out, no wait."""
    x = floats((1, 2), 1, 2)
    task, told = at.submit({"x": x}, output_filter=("name",), deadline_s=2000.0)
    at.step()
    (seen,) = at.inner.seen
    assert seen.inputs["x"] is x
    assert (seen.output_filter, seen.deadline_s) == (("name",), 2000.0)
    assert seen.cancel is task.cancel
    assert outputs_of(told).keys() == {"name"}


def test_each_request_gets_the_outputs_it_asked_for(at: BatchedSums) -> None:
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
    at = BatchedSums(Sums(signature_of({"a": spec, "b": spec})))
    _, first = at.submit({"a": floats((1,), 1), "b": floats((1,), 10)})
    _, second = at.submit({"b": floats((1,), 20), "a": floats((1,), 2)})
    at.step()
    assert len(at.inner.seen) == 1
    assert at.inner.seen[0].inputs["b"] == floats((2,), 10, 20)
    assert floats_of(outputs_of(first)["sum"]) == [11]
    assert floats_of(outputs_of(second)["sum"]) == [22]


def test_one_bad_request_fails_alone(at: BatchedSums) -> None:
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

    at = BatchedSums(Validating(), options_of(max_batch_rows=8, allowed_rows=(8,)))
    _, good = at.submit({"x": floats((2, 2), 1, 2, 3, 4)})
    _, bad = at.submit({"x": floats((2, 2), 1, 2, -3, 4)})
    _, worse = at.submit({"x": floats((1, 2), -1, 2)})
    at.step()
    assert error_of(bad).message == "sums/3: row 1 is invalid: negative"
    assert error_of(worse).message == "sums/3: row 0 is invalid: negative"
    assert floats_of(outputs_of(good)["sum"]) == [3, 7]
    assert len(at.inner.seen) == 2


def test_cancelled_and_expired_requests_cost_no_compute() -> None:
    """They leave one by one before the batch runs; the rest of it runs.

    batching_session_test: EnqueuedLongerThanTimeout;
    tfrt_saved_model_with_batching_test: AllTasksExceededDeadline. There the batch
    runs unless all of it is late, and the code is RESOURCE_EXHAUSTED.
    """
    at = BatchedSums(Sums(held=True))
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


def test_requests_of_low_priority_come_last_in_a_batch() -> None:
    """What the caller said of its task is what the queue goes by."""
    at = BatchedSums(Sums(held=True))
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


def test_the_batch_has_the_latest_deadline_of_its_requests(at: BatchedSums) -> None:
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
    at = BatchedSums(Sums(signature_of({"x": TensorSpec(FLOAT32, (-1, -1))})))
    _, short = at.submit({"x": floats((1, 1), 1)})
    _, long = at.submit({"x": floats((1, 3), 1, 2, 3)})
    at.step()
    assert sorted(task.inputs["x"].shape for task in at.inner.seen) == [(1, 1), (1, 3)]
    assert floats_of(outputs_of(short)["sum"]) == [1]
    assert floats_of(outputs_of(long)["sum"]) == [6]


def test_inputs_that_are_no_rows_must_be_equal_to_be_joined() -> None:
    """What may be left out is a setting, not a row: it stays as it is."""
    signature = signature_of(
        {"x": TensorSpec(FLOAT32, (-1, 2)), "scale": TensorSpec(INT64, (1,))},
        defaults={"scale": TensorView(INT64, (1,), bytes(8))},
    )
    at = BatchedSums(Sums(signature))
    two = TensorView(INT64, (1,), (2).to_bytes(8, "little"))
    three = TensorView(INT64, (1,), (3).to_bytes(8, "little"))
    for scale in (two, two, three):
        at.submit({"x": floats((1, 2), 1, 2), "scale": scale}, 1)
    at.submit({"x": floats((1, 2), 1, 2)})
    at.step()
    assert sorted(task.num_rows for task in at.inner.seen) == [1, 1, 2]
    joined = next(task for task in at.inner.seen if task.num_rows == 2)
    assert joined.inputs["scale"] == two


def test_large_settings_are_not_compared() -> None:
    """A request with one runs by itself."""
    signature = signature_of(
        {"x": TensorSpec(FLOAT32, (-1, 2)), "table": TensorSpec(INT64, (-1,))},
        defaults={"table": TensorView(INT64, (0,), b"")},
    )
    at = BatchedSums(Sums(signature))
    table = TensorView(INT64, (1000,), bytes(8000))
    _, told = at.submit({"x": floats((1, 2), 1, 2), "table": table}, 1)
    assert floats_of(outputs_of(told)["sum"]) == [3]


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
    at = BatchedSums(Sums(signature), BatchingOptions(), profile)
    assert at.batched.unbatched == {DEFAULT_SIGNATURE: why}
    for _ in range(2):
        _, told = at.submit({"x": floats((1, 2), 1, 2)})
        assert floats_of(outputs_of(told)["sum"]) == [3]
    assert [task.num_rows for task in at.inner.seen] == [1, 1]


def test_a_profile_that_shows_dependence_beats_the_options() -> None:
    """Nobody can configure wrong answers."""
    measured = SignatureProfile(rows_independent=False)
    profile = ModelProfile(signatures={DEFAULT_SIGNATURE: measured})
    at = BatchedSums(options=UNPROVEN, profile=profile)
    assert "changed with their neighbours" in at.batched.unbatched[DEFAULT_SIGNATURE]


def test_a_request_that_does_not_match_runs_anyway(at: BatchedSums) -> None:
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
    at = BatchedSums(inner)
    at.submit({"x": floats((1, 2), 1, 2)})
    told: list[Outcome] = []
    at.batched.submit(
        InferenceTask(
            "other", inner.signatures["other"], {"x": floats((1, 2), 3, 4)}, told.append
        )
    )
    at.step()
    assert [task.signature_name for task in inner.seen] == [DEFAULT_SIGNATURE, "other"]
    assert [len(at.batched.report(name)) for name in inner.signatures] == [1, 1]


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
    at = BatchedSums(Misfit(outputs), BatchingOptions(batches_unproven=True))
    _, told = at.submit({"x": floats((2, 2), 1, 2, 3, 4)}, output_filter=("sum",))
    at.step()
    assert isinstance(error_of(told), kind)
    assert message in error_of(told).message


def test_an_output_that_a_model_left_out_fails_only_who_asked_for_it() -> None:
    """The batch ends all the same: a device that never gets free serves nobody."""

    class Forgets(Sums):
        def compute(self, task: InferenceTask) -> Outcome:
            outcome = super().compute(task)
            assert not isinstance(outcome, ServingError)
            return {"sum": outcome["sum"]}

    at = BatchedSums(Forgets())
    _, all_there_is = at.submit({"x": floats((1, 2), 1, 2)})
    _, named = at.submit({"x": floats((1, 2), 1, 2)}, output_filter=("sum", "name"))
    _, other = at.submit({"x": floats((1, 2), 3, 4)}, output_filter=("sum",))
    at.step()
    assert floats_of(outputs_of(all_there_is)["sum"]) == [3.0]
    assert error_of(named).message.endswith("output 'name' is missing")
    assert floats_of(outputs_of(other)["sum"]) == [7.0]
    assert at.scheduler.num_in_flight == 0


def test_closing_computes_what_waits_and_refuses_the_rest() -> None:
    """Unloading drains; the callback comes when the loop holds nothing more."""
    at = BatchedSums(Sums(held=True))
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


def test_closing_what_never_had_a_request_is_immediate(at: BatchedSums) -> None:
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
    at = BatchedSums(inner, num_batch_threads=1000)
    for length in range(64):
        at.submit({"x": floats((1, length), *range(length))})
    at.submit({"x": floats((1, 64), *range(64))})
    assert [task.inputs["x"].shape for task in inner.seen] == [(1, 64)]
    at.step()
    while inner.waiting:
        inner.finish()
    at.submit({"x": floats((1, 65), *range(65))})
    assert len(at.batched.report(DEFAULT_SIGNATURE)) == 1


def test_a_default_that_fits_no_type_is_refused_when_loading() -> None:
    """A pad value that the input cannot hold is found before any request."""
    spec = TensorSpec(INT64, (-1, -1), pad=0.5)
    with pytest.raises(InvalidArgument, match="does not hold"):
        BatchedSums(Sums(signature_of({"x": spec})))


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
    at = BatchedSums(
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
    at = BatchedSums(Sums(held=True), num_batch_threads=4)
    options = replace(options_of(max_batch_rows=1), num_batch_threads=num_batch_threads)
    at.batched = BatchedServable(
        at.inner, at.scheduler, at.loop, options, max_in_flight=max_in_flight
    )
    for _ in range(6):
        at.submit({"x": floats((1, 2), 1, 2)})
    at.step()
    assert len(at.inner.waiting) == num_running


def test_parameters_of_tensorflow_serving_work_unchanged() -> None:
    """What its file says is what happens."""
    options = options_from_parameters(
        max_batch_size=4, allowed_batch_sizes=[2, 4], batch_timeout_micros=1_000_000
    )
    measured = SignatureProfile(rows_independent=True)
    profile = ModelProfile(signatures={DEFAULT_SIGNATURE: measured})
    at = BatchedSums(options=options, profile=profile)
    _, told = at.submit({"x": floats((1, 2), 1, 2)})
    at.step()
    assert at.inner.seen == []
    at.clock.advance(1.0)
    at.step()
    assert at.inner.seen[0].num_rows == 2
    assert floats_of(outputs_of(told)["sum"]) == [3]


def test_a_queue_that_cannot_be_made_is_the_requests_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A task that came is always answered, whatever breaks before it waits."""
    at = BatchedSums()

    def refuse(*_: object, **__: object) -> None:
        raise MemoryError("no room for a queue")

    monkeypatch.setattr(at.scheduler, "add_queue", refuse)
    _, told = at.submit({"x": floats((1, 2), 0, 0)})
    assert "no room for a queue" in str(error_of(told))


def test_who_is_gone_when_the_batch_begins_costs_no_compute() -> None:
    """A batch may wait behind another for longer than its callers do: their rows are
    left out, and the others get their own answers.
    """
    at = BatchedSums(Sums(held=True))
    late = at.submit({"x": floats((1, 2), 1, 1)}, deadline_s=at.clock.now() + 1.0)
    gone = at.submit({"x": floats((1, 2), 2, 2)})
    stays = at.submit({"x": floats((2, 2), 3, 3, 4, 4)})
    at.step()
    (joined,) = at.inner.waiting
    gone[0].cancel.cancel(Cancelled("gone"))
    at.clock.advance(1.0)
    assert joined.begin(at.clock.now(), "sums/3") is None
    assert (joined.num_rows, joined.inputs["x"]) == (2, floats((2, 2), 3, 3, 4, 4))
    at.step()
    assert isinstance(error_of(late[1]), DeadlineExceeded)
    assert isinstance(error_of(gone[1]), Cancelled)
    at.inner.finish()
    assert outputs_of(stays[1])["sum"] == floats((2,), 6, 8)
    (report,) = at.batched.report(DEFAULT_SIGNATURE)
    assert (report.counts.num_expired, report.counts.num_cancelled) == (1, 1)


def test_a_batch_that_nobody_waits_for_is_not_computed() -> None:
    """It ends when its turn comes, each of its tasks once."""
    at = BatchedSums(Sums(held=True))
    first, second = (at.submit({"x": floats((1, 2), 1, 1)}) for _ in range(2))
    at.step()
    (joined,) = at.inner.waiting
    for task, _ in (first, second):
        task.cancel.cancel(Cancelled("gone"))
    error = joined.begin(at.clock.now(), "sums/3")
    assert isinstance(error, Cancelled)
    joined.on_done(error)
    assert [type(error_of(told)) for _, told in (first, second)] == [Cancelled] * 2


@pytest.mark.parametrize("options", [None, options_of(max_batch_rows=8)])
def test_no_batch_is_larger_than_the_model_takes(
    options: BatchingOptions | None,
) -> None:
    """Neither the default nor an operator's size goes beyond what the model's file or
    measuring allows; a larger request is computed in parts where sizes are free.
    """
    measured = SignatureProfile(rows_independent=True, max_rows=5)
    profile = ModelProfile(signatures={DEFAULT_SIGNATURE: measured})
    at = BatchedSums(
        Sums(replace(signature_of(), max_rows=3)),
        options or UNPROVEN,
        profile,
    )
    told = [at.submit({"x": floats((2, 2), 1, 1, 2, 2)})[1] for _ in range(3)]
    at.step()
    assert [task.num_rows for task in at.inner.seen] == [2, 2, 2]
    assert all(outputs_of(each)["sum"] == floats((2,), 2, 4) for each in told)


def test_what_batching_comes_to_can_be_read() -> None:
    """Sizes, padding, waits and ends, per queue and for exporters.

    batching_session_test: the metrics of AllowedBatchSizesRequirePadding.
    """
    at = BatchedSums()
    stats = Stats()
    measured = SignatureProfile(rows_independent=True)
    profile = ModelProfile(signatures={DEFAULT_SIGNATURE: measured})
    at.batched = BatchedServable(
        at.inner, at.scheduler, at.loop, options_of(allowed_rows=(4,)), profile, stats
    )
    assert at.batched.report(DEFAULT_SIGNATURE) == []
    assert at.batched.report("no such signature") == ()
    assert list(stats.histograms()) == []
    assert {value for _, _, value in stats.counters()} == {0}
    gone, _ = at.submit({"x": floats((1, 2), 1, 2)})
    gone.cancel.cancel(Cancelled("gone"))
    at.submit({"x": floats((2, 2), 1, 2, 3, 4)})
    at.submit({"x": floats((5, 2), *range(10))})
    at.step()
    (report,) = at.batched.report(DEFAULT_SIGNATURE)
    assert report.input_names == ("x",)
    counts = report.counts
    assert (counts.num_batches, counts.num_rows, counts.num_padding_rows) == (1, 2, 2)
    assert (counts.num_tasks, counts.num_failed_tasks) == (1, 0)
    assert (counts.num_refused, counts.num_cancelled) == (1, 1)
    assert counts.batch_fill().total == 0.5
    labels = (("model", "sums"), ("signature", DEFAULT_SIGNATURE), ("version", "3"))
    values = {(name, found): value for name, found, value in stats.counters()}
    assert values["batches", labels] == 1
    assert values["batch_tasks", (("end", "refused"), *labels)] == 1
    histograms = {name: found for name, _, found in stats.histograms()}
    assert histograms["batch_rows"].mean == 2
    assert "batch_depth_tasks" in histograms
    at.batched.close()
    assert list(stats.counters()) == []
    assert list(stats.histograms()) == []


def test_published_numbers_keep_no_version_alive() -> None:
    """A load that fails after its queues were made never closes them."""
    at = BatchedSums()
    stats = Stats()
    BatchedServable(at.inner, at.scheduler, at.loop, options_of(), None, stats)
    assert list(stats.counters()) == []


def test_numbers_go_on_when_a_version_gets_another_form() -> None:
    """Re-placed, a version has new queues, which count on; totals never fall."""
    at = BatchedSums()
    stats = Stats()

    def made(max_batch_rows: int) -> BatchedServable:
        options = options_of(max_batch_rows=max_batch_rows)
        return BatchedServable(at.inner, at.scheduler, at.loop, options, None, stats)

    def numbers() -> tuple[int, int]:
        (report,) = at.batched.report(DEFAULT_SIGNATURE)
        assert sum(report.counts.batch_rows().counts) == report.counts.num_batches
        (total,) = (
            value for name, _, value in stats.counters() if name == stat_names.BATCHES
        )
        assert total == report.counts.num_batches
        return report.counts.num_tasks, report.counts.num_rows

    at.batched = made(8)
    at.submit({"x": floats((7, 2), *range(14))})
    at.step()
    assert numbers() == (1, 7)
    for max_batch_rows in (4, 2):
        before, at.batched = at.batched, made(max_batch_rows)
        at.batched.continue_counts(before)
        before.close()
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
    at = BatchedSums()
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
    at.batched.continue_counts(before)
    before.close()
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
    assert at.batched.counts("no such signature").num_past == 0
