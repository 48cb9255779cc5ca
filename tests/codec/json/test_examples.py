"""Classify and Regress in JSON."""

from __future__ import annotations

import json

import pytest

from tfs.codec.json.examples import (
    read_examples,
    write_classify_reply,
    write_regress_reply,
)
from tfs.core.errors import InvalidArgument
from tfs.proto.tensorflow_serving.apis import (
    classification_pb2,
    input_pb2,
    regression_pb2,
)


def parse(**document: object) -> tuple[str, input_pb2.Input]:
    message = input_pb2.Input()
    return read_examples(json.dumps(document).encode(), message), message


def test_features_have_the_type_of_their_values() -> None:
    """Integers and booleans, decimals, text and base64; alone or in a list.

    RequestNoContext, RequestWithContextAndSignature.
    """
    signature_name, message = parse(
        signature_name="s",
        context={"c": 1},
        examples=[{"i": [1, True], "f": 0.5, "s": ["a", {"b64": "/w=="}], "n": []}],
    )
    assert signature_name == "s"
    (example,) = message.example_list_with_context.examples
    features = example.features.feature
    assert list(features["i"].int64_list.value) == [1, 1]
    assert list(features["f"].float_list.value) == [0.5]
    assert list(features["s"].bytes_list.value) == [b"a", b"\xff"]
    assert features["n"].WhichOneof("kind") is None
    context = message.example_list_with_context.context.features.feature
    assert list(context["c"].int64_list.value) == [1]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "When method is classify, key 'examples' is expected and was not found"),
        ({"examples": 1}, "Expecting 'examples' value to be an list/array"),
        ({"examples": []}, "'examples' value is an empty array"),
        ({"examples": [1]}, "Example must be JSON object but got JSON Number"),
        ({"examples": [{"a": [1, 0.5]}]}, "feature: a expecting type: int64"),
        ({"examples": [{"a": ["x", 1]}]}, "feature: a expecting type: bytes"),
        ({"examples": [{"a": 1 << 63}]}, "Feature: a has uint64_t element"),
        ({"examples": [{"a": None}]}, "Feature: a has element with unexpected JSON"),
        ({"examples": [{"a": [[1]]}]}, "unexpected JSON type: Array"),
        ({"examples": [{"a": {"b": 1}}]}, "unexpected JSON type: Object"),
        ({"examples": [{}], "context": 1}, "Example must be JSON object"),
    ],
)
def test_what_is_wrong_is_said_in_tensorflow_servings_words(
    document: dict[str, object], message: str
) -> None:
    """Messages are those of upstream (JsonErrors)."""
    with pytest.raises(InvalidArgument, match=message):
        parse(**document)


def test_results_are_labels_and_scores_or_values() -> None:
    """Scores have as many digits as a float32 needs.

    JsonFromClassificationResult, JsonFromRegressionResult,
    JsonFromRegressionResultWithNonFinite.
    """
    classified = classification_pb2.ClassificationResponse()
    classified.result.classifications.add().classes.add(label="cat", score=0.9)
    body = write_classify_reply(classified.SerializeToString())
    assert body == b'{"results":[[["cat",0.9]]]}'
    regressed = regression_pb2.RegressionResponse()
    for value in (0.1, float("nan")):
        regressed.result.regressions.add(value=value)
    body = write_regress_reply(regressed.SerializeToString())
    assert body == b'{"results":[0.1,NaN]}'
