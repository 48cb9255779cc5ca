"""tfs.server.canary: difference, comparison and guard."""

from __future__ import annotations

import itertools
import math
import struct

import numpy as np
import pytest

from tests.present import present
from tfs.core.dtype import BFLOAT16, STRING, dtype
from tfs.core.errors import Internal
from tfs.core.servable import Outcome
from tfs.core.tensor_view import TensorView
from tfs.proto.tfs.v1.admin_service_pb2 import Comparison
from tfs.proto.tfs.v1.model_config_pb2 import Guard
from tfs.server.canary.comparison import (
    MAX_SPANS,
    Figures,
    Side,
    Tally,
    TrialHistory,
    judge,
    rejection,
)
from tfs.server.canary.difference import Difference, difference


def tensor(values: object, kind: str = "float32") -> TensorView:
    """Returns an array as a view."""
    array = np.array(values, dtype=kind)
    return TensorView(dtype(kind), array.shape, array.tobytes())


def strings(*values: bytes) -> TensorView:
    """Returns a row of strings each."""
    return TensorView(STRING, (len(values),), values)


def test_equal_answers_do_not_differ() -> None:
    """Bytes decide first: nothing is decoded for equal tensors."""
    scores = tensor([[0.1, 0.9], [0.8, 0.2]])
    assert difference({"y": scores}, {"y": scores}) == Difference(2, 0, 4, 0.0, 0.0)


def test_numbers_are_compared_element_by_element() -> None:
    """Sum and maximum over all outputs."""
    one = {"y": tensor([1.0, 2.0]), "z": tensor([[0]], "int32")}
    other = {"y": tensor([1.5, 2.0]), "z": tensor([[3]], "int32")}
    found = difference(one, other)
    assert found == Difference(0, 0, 3, 3.5, 3.0)


@pytest.mark.parametrize(
    ("one", "other", "num_disagreeing"),
    [
        (tensor([[0.1, 0.9], [0.8, 0.2]]), tensor([[0.2, 0.8], [0.3, 0.7]]), 1),
        (tensor([[np.nan, 0.1], [0.8, 0.2]]), tensor([[0.9, 0.1], [0.8, 0.2]]), 1),
        (tensor([[0.9, 0.1], [0.8, 0.2]]), tensor([[0.9, np.nan], [0.8, 0.2]]), 1),
        (tensor([[np.nan, 0.1], [2, 1]]), tensor([[np.nan, 0.1], [1, 2]]), 1),
        (tensor([3, 4], "int64"), tensor([3, 5], "int64"), 1),
        (strings(b"cat", b"dog"), strings(b"cat", b"cow"), 1),
        (tensor([0.1, 0.9]), tensor([0.9, 0.1]), None),  # no classes: a regression
        (tensor([[1, 2]], "int64"), tensor([[2, 1]], "int64"), None),
    ],
)
def test_a_rows_class_is_its_highest_score(
    one: TensorView, other: TensorView, num_disagreeing: int | None
) -> None:
    """Scores [rows, classes] of floats; labels and whole numbers stand for themselves."""
    found = present(difference({"y": one}, {"y": other}))
    if num_disagreeing is None:
        assert found.num_rows == 0
    else:
        assert (found.num_rows, found.num_disagreeing) == (2, num_disagreeing)


def test_a_row_disagrees_once_however_many_outputs_do() -> None:
    """The unit is the row."""
    one = {"a": strings(b"x", b"y"), "b": tensor([1, 2], "int64")}
    other = {"a": strings(b"x", b"z"), "b": tensor([1, 3], "int64")}
    found = present(difference(one, other))
    assert (found.num_rows, found.num_disagreeing) == (2, 1)


@pytest.mark.parametrize(
    "other",
    [
        {"z": tensor([1.0])},
        {"y": tensor([1.0]), "z": tensor([1.0])},
        {"y": tensor([1.0], "float64")},
        {"y": tensor([[1.0]])},
        {},
    ],
)
def test_another_form_cannot_be_compared(other: dict[str, TensorView]) -> None:
    """Names, dtypes and shapes must be the same."""
    assert difference({"y": tensor([1.0])}, other) is None


def test_only_what_was_asked_for_is_compared() -> None:
    """A servable may return more than the filter names."""
    one = {"y": tensor([1.0]), "more": tensor([1.0])}
    other = {"y": tensor([1.0]), "less": tensor([1.0])}
    assert difference(one, other, ("y",)) is not None


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (math.nan, math.nan, 0.0),
        (math.inf, math.inf, 0.0),
        (math.nan, 1.0, math.inf),
        (-math.inf, math.inf, math.inf),
    ],
)
def test_not_a_number_is_far_from_any(
    one: float, other: float, expected: float
) -> None:
    """Equal oddities are equal; different ones exceed every limit."""
    found = present(difference({"y": tensor([one, 0.0])}, {"y": tensor([other, 1.0])}))
    assert found.max_abs_diff == max(expected, 1.0)


@pytest.mark.parametrize(
    "kind", ["float16", "float64", "int8", "uint64", "bool", "complex64"]
)
def test_every_dtype_is_compared(kind: str) -> None:
    """Differences are computed in double precision, whatever the dtype."""
    found = present(
        difference({"y": tensor([0, 1], kind)}, {"y": tensor([1, 1], kind)})
    )
    assert found.max_abs_diff == 1.0


def test_bfloat16_is_compared_by_value() -> None:
    """numpy does not know it; its bits are the upper half of a float32."""

    def view(value: float) -> TensorView:
        return TensorView(BFLOAT16, (1,), struct.pack("<f", value)[2:])

    assert present(difference({"y": view(1.0)}, {"y": view(1.5)})).max_abs_diff == 0.5


def test_a_tally_adds_up() -> None:
    """Means over elements, disagreement over rows, errors over requests."""
    tally = Tally(Side(4), Side(4, num_errors=2), num_canary_faults=1)
    tally.add_pair(2, Difference(2, 1, 4, 2.0, 1.5))
    tally.add_pair(2, None)
    tally.primary.latency_s.observe(0.25)
    tally.canary.latency_s.observe(0.5)
    found = tally.figures()
    assert found.canary_fault_rate == 0.25
    figures = found.shown
    assert figures.num_requests == 2
    assert figures.num_rows == 4
    assert figures.num_incomparable == 1
    assert figures.mean_abs_diff == 0.5
    assert figures.max_abs_diff == 1.5
    assert figures.top1_disagreement == 0.75  # one row, and both that have no equal
    assert figures.canary_error_rate == 0.5
    assert figures.primary_error_rate == 0.0
    assert figures.latency_ratio == 2.0


def test_nothing_measured_is_no_figure() -> None:
    """Zero would look like perfection."""
    assert Tally().figures().shown == Comparison()


@pytest.mark.parametrize(
    ("guard", "figures", "exceeded"),
    [
        (Guard(), Figures(Comparison(mean_abs_diff=9.0), 9), []),
        (
            Guard(max_mean_abs_diff=0.5),
            Figures(Comparison(mean_abs_diff=0.5), 1),
            [],
        ),
        (
            Guard(max_mean_abs_diff=0.5),
            Figures(Comparison(mean_abs_diff=0.6), 1),
            ["max_mean_abs_diff"],
        ),
        (
            Guard(min_samples=2, max_mean_abs_diff=0.5),
            Figures(Comparison(mean_abs_diff=0.6), 1),
            [],
        ),
        (
            Guard(max_mean_abs_diff=0.5),
            Figures(Comparison(mean_abs_diff=math.nan), 1),
            ["max_mean_abs_diff"],
        ),
        (
            Guard(max_error_rate=0.0, max_latency_ratio=1.5),
            Figures(Comparison(latency_ratio=1.6), 1, 0.1, sure_latency_ratio=1.6),
            ["max_latency_ratio", "max_error_rate"],
        ),
        (Guard(max_top1_disagreement=0.1), Figures(Comparison(), 1), []),
    ],
)
def test_a_limit_counts_with_samples_enough(
    guard: Guard, figures: Figures, exceeded: list[str]
) -> None:
    """What was not measured exceeds nothing; what is not a number exceeds all."""
    limits = judge(guard, figures)
    assert [each.name for each in limits if each.exceeded] == exceeded
    assert bool(rejection(limits, figures)) is bool(exceeded)


def test_a_few_slow_requests_are_no_slow_version() -> None:
    """A pause of the host hits one of the two; every request of a slow version is slow."""
    guard = Guard(max_latency_ratio=1.5)
    unlucky, slow = Tally(), Tally()
    answer: Outcome = {}
    for index in range(1000):
        is_paused = index % 250 == 100
        unlucky.add_split(answer, 0.0004, is_canary=False)
        unlucky.add_split(answer, 0.1 if is_paused else 0.0004, is_canary=True)
        slow.add_split(answer, 0.1 if is_paused else 0.0004, is_canary=False)
        slow.add_split(answer, 0.1 if is_paused else 0.0024, is_canary=True)
    (limit,) = judge(guard, unlucky.figures())
    assert limit.value == pytest.approx(1.996)
    assert not limit.exceeded
    (limit,) = judge(guard, slow.figures())
    assert present(limit.value) > 2
    for _ in range(4000):
        slow.add_split(answer, 0.0004, is_canary=False)
        slow.add_split(answer, 0.0024, is_canary=True)
    (limit,) = judge(guard, slow.figures())
    assert limit.exceeded


def test_each_time_has_the_figures_of_its_own_requests() -> None:
    """What came before does not weigh on it; what was not measured is None."""
    tally, history = Tally(), TrialHistory()
    history.note(100.0, tally)
    tally.add_copy({}, 0.1, {}, 0.2)
    tally.add_pair(2, Difference(num_rows=2, num_disagreeing=1))
    history.note(101.0, tally)  # too soon
    history.note(102.0, tally)
    tally.add_copy({}, 0.1, Internal("no"), 0.0)
    history.note(104.0, tally)
    first, second = history.spans()
    assert (first.begun_s, second.begun_s) == (100.0, 102.0)
    assert (first.top1_disagreement, second.top1_disagreement) == (0.5, None)
    assert (first.canary_error_rate, second.canary_error_rate) == (0.0, 1.0)
    assert first.latency_ratio == 2.0
    assert second.latency_ratio is None


def test_a_long_trial_is_told_in_as_few_times_as_a_short_one() -> None:
    """They are of equal length, and none is left out."""
    tally, history = Tally(), TrialHistory()
    for now_s in range(0, 5000, 2):
        tally.add_copy({}, 0.1, {}, 0.1)
        history.note(float(now_s), tally)
    spans = history.spans()
    assert MAX_SPANS / 2 <= len(spans) <= MAX_SPANS
    steps = {
        after.begun_s - before.begun_s for before, after in itertools.pairwise(spans)
    }
    assert len(steps) == 1
    assert spans[0].begun_s == 0.0
    assert all(span.canary_error_rate == 0.0 for span in spans)
