"""tfs.client.replay."""

from __future__ import annotations

import math
import struct

import pytest

from tests.present import present
from tfs.client.replay import Tolerance, differences, exchange_of
from tfs.client.requests import CLASSIFY, MULTI_INFERENCE, PREDICT, REGRESS, Target
from tfs.core.errors import InvalidArgument
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import (
    classification_pb2,
    inference_pb2,
    predict_pb2,
    prediction_log_pb2,
    regression_pb2,
)

EXACT = Tolerance(0, 0)


def difference(method: str, before: bytes, after: bytes, tolerance: Tolerance) -> str:
    """Returns all differences in one line."""
    return "; ".join(map(str, differences(method, before, after, tolerance)))


def test_every_output_that_differs_is_told_with_how_far() -> None:
    """Numbers say the largest distance, infinity if one is no number; others none."""
    before, after = prediction(1, 2, 3), prediction(1, 2.5, 5)
    (found,) = differences(PREDICT, before, after, EXACT)
    assert (found.output, found.largest) == ("y", 2.0)
    nan = prediction(1, float("nan"), 3)
    assert differences(PREDICT, before, nan, EXACT)[0].largest == math.inf
    both = differences(PREDICT, nan, prediction(2, float("nan"), 3), EXACT)
    assert both[0].largest == 1.0
    missing, new = differences(PREDICT, before, prediction(1, name="z"), EXACT)
    assert (str(missing), str(new)) == ("y is missing", "z is new")
    assert missing.largest is None


def prediction(
    *values: float, name: str = "y", version: int = 1, ints: bool = False
) -> bytes:
    response = predict_pb2.PredictResponse()
    response.model_spec.version.value = version
    tensor = response.outputs[name]
    tensor.tensor_shape.dim.add(size=len(values))
    if ints:
        tensor.dtype = types_pb2.DT_INT32
        tensor.int_val.extend(int(value) for value in values)
    else:
        tensor.dtype = types_pb2.DT_FLOAT
        tensor.tensor_content = struct.pack(f"<{len(values)}f", *values)
    return response.SerializeToString()


def test_who_answered_is_not_compared() -> None:
    """Another version that says the same is the same."""
    nan = float("nan")
    before, after = prediction(1, nan), prediction(1, nan, version=2)
    assert difference(PREDICT, before, after, EXACT) == ""


def test_floats_may_differ_a_little() -> None:
    """Within the tolerance is the same, beyond it the first place is named."""
    before, after = prediction(1.0, 2.0), prediction(1.0, 2.5)
    assert difference(PREDICT, before, after, Tolerance(0.25, 0)) == ""
    found = difference(PREDICT, before, after, EXACT)
    assert found.startswith("y: 1 of 2 elements differ, first at [1]: 2.5, was 2.0")


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (prediction(1, 2, name="z"), "is "),
        (prediction(1, 2, 3), "y: shape [3], was [2]"),
        (prediction(1, 2, ints=True), "y: dtype int32, was float32"),
    ],
)
def test_another_form_differs(after: bytes, words: str) -> None:
    """Names, shapes and dtypes are part of an answer."""
    assert words in difference(PREDICT, prediction(1, 2), after, EXACT)


@pytest.mark.parametrize("ints", [False, True])
def test_a_number_that_differs_is_told_too(ints: bool) -> None:
    """An output without dimensions has no place, and is compared like any other."""

    def scalar(value: float) -> bytes:
        response = predict_pb2.PredictResponse.FromString(prediction(value, ints=ints))
        response.outputs["y"].tensor_shape.Clear()
        return response.SerializeToString()

    assert difference(PREDICT, scalar(1), scalar(1), EXACT) == ""
    found = difference(PREDICT, scalar(1), scalar(2), EXACT)
    assert found.startswith("y: 1 of 1 elements differ, first at []: 2")


def test_integers_are_compared_exactly() -> None:
    """A tolerance is for floats."""
    before, after = prediction(100, ints=True), prediction(101, ints=True)
    assert difference(PREDICT, before, after, Tolerance(1, 1))


def classification(label: str, score: float) -> classification_pb2.ClassificationResult:
    result = classification_pb2.ClassificationResult()
    result.classifications.add().classes.add(label=label, score=score)
    return result


def test_classes_are_compared_by_label_and_score() -> None:
    """A label that moved and a score that changed are both told."""

    def response(label: str, score: float) -> bytes:
        return classification_pb2.ClassificationResponse(
            result=classification(label, score)
        ).SerializeToString()

    before = response("a", 0.5)
    assert difference(CLASSIFY, before, before, EXACT) == ""
    assert difference(CLASSIFY, before, response("b", 0.5), EXACT).startswith("labels")
    assert difference(CLASSIFY, before, response("a", 0.6), EXACT).startswith("scores")


def test_values_and_several_results_are_compared() -> None:
    """Regress compares values; MultiInference each result by its signature."""

    def regression(value: float) -> regression_pb2.RegressionResult:
        result = regression_pb2.RegressionResult()
        result.regressions.add(value=value)
        return result

    def single(value: float) -> bytes:
        return regression_pb2.RegressionResponse(
            result=regression(value)
        ).SerializeToString()

    def several(value: float) -> bytes:
        response = inference_pb2.MultiInferenceResponse()
        for key in ("r", "c"):
            response.results.add().model_spec.signature_name = key
        response.results[0].regression_result.CopyFrom(regression(value))
        response.results[1].classification_result.CopyFrom(classification("a", 1))
        return response.SerializeToString()

    assert difference(REGRESS, single(1), single(1), EXACT) == ""
    assert difference(REGRESS, single(1), single(2), EXACT).startswith("values: 1 of 1")
    assert difference(MULTI_INFERENCE, several(1), several(1), EXACT) == ""
    assert difference(MULTI_INFERENCE, several(1), several(2), EXACT).startswith("r va")
    with pytest.raises(InvalidArgument):
        difference("/other", b"", b"", EXACT)


def test_a_logged_request_can_be_sent_to_another_version() -> None:
    """Model, version or label are replaced where asked for; the rest is as logged."""
    entry = prediction_log_pb2.PredictionLog()
    spec = entry.predict_log.request.model_spec
    spec.name, spec.signature_name, spec.version.value = "m", "s", 1
    same = present(exchange_of(entry))
    sent = predict_pb2.PredictRequest.FromString(same.request).model_spec
    assert (sent.name, sent.version.value) == ("m", 1)
    other = present(exchange_of(entry, Target("n", label="new")))
    sent = predict_pb2.PredictRequest.FromString(other.request).model_spec
    assert (sent.name, sent.version_label, sent.signature_name) == ("n", "new", "s")
    entry = prediction_log_pb2.PredictionLog()
    task = entry.multi_inference_log.request.tasks.add()
    task.model_spec.name = "m"
    several = present(exchange_of(entry, Target("", version=4)))
    request = inference_pb2.MultiInferenceRequest.FromString(several.request)
    assert request.tasks[0].model_spec.name == "m"
    assert request.tasks[0].model_spec.version.value == 4


def test_what_cannot_be_sent_is_skipped() -> None:
    """An entry without a request, or of an RPC nobody offers, is nothing to replay."""
    entry = prediction_log_pb2.PredictionLog()
    assert exchange_of(entry) is None
    entry.session_run_log.SetInParent()
    assert exchange_of(entry) is None


@pytest.mark.parametrize("tolerance", [(-1.0, 0.0), (0.0, math.nan)])
def test_a_tolerance_that_nothing_meets_is_refused(
    tolerance: tuple[float, float],
) -> None:
    """Else every answer would seem to differ."""
    with pytest.raises(InvalidArgument, match="a tolerance must be at least 0"):
        Tolerance(*tolerance)
