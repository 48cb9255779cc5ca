"""tfs.servables.measuring.tuning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from batching.batching_options import BatchingOptions
from tests.runtime.packaged import signature
from tfs.core.errors import FailedPrecondition, Internal, InvalidArgument
from tfs.core.servable import Tensors
from tfs.core.signature import Signature
from tfs.servables.measuring.probe_subject import ProbeSubject
from tfs.servables.measuring.tuning import (
    RecommendedParameters,
    TuningOptions,
    recommended_parameters,
    tune,
)
from tfs.server.placing.batcher import read_batching_parameters
from tfs.testing.fake_clock import FakeClock


class Subject(ProbeSubject):
    """Answers with its input after as long as a batch of its size takes."""

    pid = 0
    last_call_s = None
    process_changes = ""

    def __init__(
        self,
        clock: FakeClock,
        call_s: Callable[[int], float],
        answer: Callable[[Tensors], Tensors] = lambda inputs: {"y": inputs["x"]},
    ) -> None:
        self.signatures: Mapping[str, Signature] = {
            "serving_default": signature(),
            "whole": signature(batched=False),
        }
        self.sizes: list[int] = []
        self._clock = clock
        self._call_s = call_s
        self._answer = answer

    def call(self, signature_name: str, inputs: Tensors, timeout_s: float) -> Tensors:
        rows = inputs["x"].num_rows
        self.sizes.append(rows)
        self._clock.advance(self._call_s(rows))
        return self._answer(inputs)


def test_sizes_take_turns_until_the_budget_is_spent(tmp_path: Path) -> None:
    """A round over all sizes at a time, the first one left out; at least three count."""
    clock = FakeClock()
    subject = Subject(clock, lambda rows: 1.0 + rows)
    tuning = tune(
        subject, str(tmp_path), "serving_default", TuningOptions(4, 100.0), clock
    )
    assert subject.sizes[:6] == [2, 2, 3, 1, 1, 4]  # are rows independent?
    assert subject.sizes[6:10] == [1, 2, 3, 4]
    # 14 s a round: the eighth ends after the budget
    assert tuning.num_rounds == 7
    assert tuning.call_s_by_rows == {1: 2.0, 2: 3.0, 3: 4.0, 4: 5.0}
    assert not tuning.doubt
    assert not tuning.is_example
    hasty = tune(
        subject, str(tmp_path), "serving_default", TuningOptions(4, 0.0), clock
    )
    assert hasty.num_rounds == 3


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (8, (1, 2, 3, 4, 6, 8)),
        (20, (1, 2, 3, 4, 6, 8, 12, 16, 20)),
    ],
)
def test_sizes_are_powers_of_two_and_what_is_between(
    largest: int, sizes: tuple[int, ...]
) -> None:
    """Steps of kernels show, and the largest is measured whatever it is."""
    assert TuningOptions(largest).sizes == sizes


def test_what_cannot_be_batched_is_not_tuned(tmp_path: Path) -> None:
    """A signature that cannot be batched is refused with the server's reason."""
    clock = FakeClock()

    def first_row_everywhere(inputs: Tensors) -> Tensors:
        x = inputs["x"]
        data = bytes(x.rows(0, 1).data) * x.num_rows  # type: ignore[arg-type]
        return {"y": type(x)(x.dtype, x.shape, data)}

    subject = Subject(clock, lambda rows: 1.0, first_row_everywhere)
    options = TuningOptions(4)
    with pytest.raises(FailedPrecondition, match="depend on each other: output 'y'"):
        tune(subject, str(tmp_path), "serving_default", options, clock)
    with pytest.raises(FailedPrecondition, match="no batch dimension"):
        tune(subject, str(tmp_path), "whole", options, clock)
    with pytest.raises(InvalidArgument, match="there are: serving_default, whole"):
        tune(subject, str(tmp_path), "absent", options, clock)


def test_doubts_about_rows_are_told(tmp_path: Path) -> None:
    """Answers that are all alike show nothing."""
    clock = FakeClock()

    def alike(inputs: Tensors) -> Tensors:
        x = inputs["x"]
        return {"y": type(x)(x.dtype, x.shape, bytes(8 * x.num_rows))}

    subject = Subject(clock, lambda rows: 1.0, alike)
    tuning = tune(
        subject, str(tmp_path), "serving_default", TuningOptions(2, 0.0), clock
    )
    assert "gave the same outputs" in tuning.doubt


def test_a_call_that_fails_ends_it(tmp_path: Path) -> None:
    """There is nothing to recommend."""
    clock = FakeClock()

    def fails(inputs: Tensors) -> Tensors:
        raise Internal("out of memory")

    with pytest.raises(Internal, match="out of memory"):
        tune(
            Subject(clock, lambda rows: 1.0, fails),
            str(tmp_path),
            "serving_default",
            TuningOptions(2),
            clock,
        )


@pytest.mark.parametrize(
    ("times", "batch_rows", "allowed"),
    [
        # constant cost up to 8, then in proportion: 8 is enough, and any size is good
        ({1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0, 16: 2.0, 32: 4.0}, 8, ()),
        # in proportion from the start: no batching pays
        ({1: 1.0, 2: 2.0, 4: 4.0}, 1, ()),
        # still getting better: the largest
        ({1: 1.0, 2: 1.1, 4: 1.2}, 4, ()),
        # 12 rows take longer than 16: they are padded
        ({1: 1.0, 8: 4.0, 12: 6.5, 16: 5.0}, 16, (1, 8, 16)),
        # a few percent are noise, and padding on their account would cost
        ({1: 1.0, 2: 0.95, 4: 1.1, 8: 1.2}, 8, ()),
        # a step beyond the best size does not matter
        ({1: 1.0, 8: 1.0, 12: 6.5, 16: 5.0}, 8, ()),
    ],
)
def test_measured_times_decide(
    times: dict[int, float], batch_rows: int, allowed: tuple[int, ...]
) -> None:
    """The smallest size that is as good as any; fixed sizes only where padding saves."""
    found = recommended_parameters(times)
    assert (found.batch_rows, found.allowed_sizes) == (batch_rows, allowed)
    options = read_batching_parameters(found.text, "here")
    assert isinstance(options, BatchingOptions)
    assert options.queue.max_batch_rows == batch_rows
    assert options.queue.allowed_rows == allowed
    assert options.queue.max_task_rows == 1000
    assert options.queue.timeout_s == 0
    assert options.queue.splits


def test_nothing_measured_recommends_nothing() -> None:
    """Without measurements there is an error, not a guess that looks like one."""
    with pytest.raises(InvalidArgument):
        recommended_parameters({})


def test_large_batches_raise_the_limit_of_requests() -> None:
    """TensorFlow Serving refuses batches larger than the largest request."""
    found = recommended_parameters({1: 1.0, 2048: 2.0})
    assert found == RecommendedParameters(2048, 2048, 10)
    assert read_batching_parameters(found.text, "here").queue.max_batch_rows == 2048


@pytest.mark.parametrize(
    "arguments",
    [(0,), (4, -1.0), (4, float("inf")), (4, 1.0, 1), (4, 1.0, 10, 0.0)],
)
def test_options_that_make_no_sense_are_refused(
    arguments: tuple[float, ...],
) -> None:
    """Options that make no sense are refused on creation, not after minutes."""
    with pytest.raises(InvalidArgument):
        TuningOptions(*arguments)  # type: ignore[arg-type]
