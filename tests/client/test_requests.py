"""tfs.client.requests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tfs.client.arrays import Typed
from tfs.client.requests import (
    Target,
    classify,
    metadata,
    predict,
    read_reply,
    regress,
    status,
)
from tfs.core.errors import InvalidArgument, Unknown
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import (
    get_model_metadata_pb2,
    predict_pb2,
    regression_pb2,
)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([1, 2], "int64_list"),
        ([1.5], "float_list"),
        ("text", "bytes_list"),
        (b"\xff", "bytes_list"),
        ([], None),
        (np.zeros(0, dtype=np.int64), "int64_list"),
    ],
)
def test_a_feature_has_the_type_of_its_values(value: object, kind: str | None) -> None:
    """An empty list has none, and is a feature without values, whatever it is of."""
    message = regress(Target("m"), [{"ids": value, "x": 1.0}]).message
    request = regression_pb2.RegressionRequest.FromString(message)
    features = request.input.example_list.examples[0].features.feature
    assert features["x"].WhichOneof("kind") == "float_list"
    assert features["ids"].WhichOneof("kind") == kind


@pytest.mark.parametrize("value", [b"ab\0", "ab\0", [b"ab\0"], ["ab\0"]])
def test_zeros_at_the_end_of_strings_are_kept(value: object) -> None:
    """What numpy's own strings would drop is sent."""
    message = regress(Target("m"), [{"image": value}]).message
    request = regression_pb2.RegressionRequest.FromString(message)
    feature = request.input.example_list.examples[0].features.feature["image"]
    assert list(feature.bytes_list.value) == [b"ab\0"]


def test_a_feature_of_numpys_bytes_that_may_have_lost_zeros_is_refused() -> None:
    """It names the feature, and says to pass a list."""
    with pytest.raises(
        InvalidArgument, match=r"feature 'image': numpy's S3 .* pass a list"
    ):
        regress(Target("m"), [{"image": np.array([b"ab\0"])}])


@pytest.mark.parametrize("value", [[2**63], [2**70], [1 + 2j], [None], ["a", 1]])
def test_what_no_feature_holds_is_refused_by_name(value: object) -> None:
    """A value that fits no tf.Example is refused before anything is sent."""
    with pytest.raises(InvalidArgument, match="'ids'"):
        regress(Target("m"), [{"ids": value}])


@pytest.mark.parametrize(
    ("value", "words"),
    [([2**70], f"feature 'ids': no dtype has {2**70}"), ({}, "'ids': dict cannot be")],
)
def test_a_feature_is_called_one(value: object, words: str) -> None:
    """Examples have features, and only tensors are inputs."""
    with pytest.raises(InvalidArgument, match=f"^.*{words}") as caught:
        classify(Target("m"), [{"ids": value}])
    assert "input" not in caught.value.message


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: predict(Target(5), {}), "a model's name is a text, not 5"),  # type: ignore[arg-type]
        (lambda: predict(Target("m", label=3), {}), "a label is a text, not 3"),  # type: ignore[arg-type]
        (lambda: predict(Target("m"), {1: 2.0}), "an input's name is a text, not 1"),  # type: ignore[dict-item]
        (lambda: predict(Target("m"), {}, [7]), "an output's name is a text, not 7"),  # type: ignore[list-item]
        (lambda: classify(Target("m"), [{2: 1}]), "a feature's name is a text, not 2"),  # type: ignore[dict-item]
        (lambda: status(Target("m", signature=4)), "signature's name is a text, not 4"),  # type: ignore[arg-type]
        (lambda: predict(Target("m"), {}, (), 7), "routing key is a text or bytes: 7"),  # type: ignore[arg-type]
        (lambda: predict(Target("m"), {}, 7), "outputs are names, in a list: 7"),  # type: ignore[arg-type]
    ],
)
def test_a_name_that_is_no_text_is_refused(
    make: Callable[[], object], words: str
) -> None:
    """protobuf says 'bad argument type for built-in operation'."""
    with pytest.raises(InvalidArgument, match=words):
        make()


@pytest.mark.parametrize("version", [2**63, -(2**63) - 1, "3", 1.5])
def test_a_version_that_no_model_spec_holds_is_refused(version: int) -> None:
    """A version that no model spec holds is an error of the client's own kind."""
    with pytest.raises(InvalidArgument, match="version must be"):
        predict(Target("m", version=version), {})


def test_one_output_may_be_asked_for_by_its_name() -> None:
    """A string is a sequence too, of letters that nobody meant."""
    message = predict(Target("m"), {}, "scores").message
    assert predict_pb2.PredictRequest.FromString(message).output_filter == ["scores"]


@pytest.mark.parametrize("ask", [classify, regress])
def test_an_example_that_is_in_no_list_is_refused(ask: Callable[..., object]) -> None:
    """Whoever means a single row, or none, learns that rows come in a list."""
    for examples in ({"x": [1.0, 2.0]}, None):
        with pytest.raises(InvalidArgument, match="a list, with a dict for each row"):
            ask(Target("m"), examples)


def test_values_that_are_no_strings_are_not_sent_as_what_they_are() -> None:
    """Who asks for strings gets strings or is told."""
    with pytest.raises(InvalidArgument, match="'x': int64 values are no strings"):
        predict(Target("m"), {"x": Typed([1], "string")})
    message = predict(Target("m"), {"x": Typed([], "string")}).message
    x = predict_pb2.PredictRequest.FromString(message).inputs["x"]
    assert x.dtype == types_pb2.DT_STRING


def test_a_reply_that_is_none_is_an_error_of_ours() -> None:
    """Something else listens there; nobody should have to catch protobuf's errors."""
    with pytest.raises(Unknown, match=r"the reply to .*Predict cannot be parsed"):
        read_reply(predict(Target("m"), {}), b"\xff" * 9)


HALF = "\ud800"
"""Of a surrogate pair: JSON can hold it, and UTF-8 cannot."""


@pytest.mark.parametrize(
    "make",
    [
        lambda: predict(Target(HALF), {}),
        lambda: predict(Target("m", label=HALF), {}),
        lambda: predict(Target("m"), {HALF: [1]}),
        lambda: predict(Target("m"), {"x": [HALF]}),
        lambda: predict(Target("m"), {}, [HALF]),
        lambda: classify(Target("m"), [{HALF: 1}]),
        lambda: regress(Target("m"), [{"x": HALF}]),
        lambda: status(Target(HALF)),
        lambda: metadata(Target(HALF)),
    ],
)
def test_text_that_is_not_unicode_is_refused(make: Callable[[], object]) -> None:
    """Text that is not Unicode is refused by an error of ours that shows it."""
    with pytest.raises(InvalidArgument, match=r"\\ud800"):
        make()


def test_metadata_names_the_inputs_that_may_be_left_out() -> None:
    """Those that the signature has defaults for."""
    found = get_model_metadata_pb2.SignatureDefMap()
    definition = found.signature_def["serving_default"]
    for name in ("text", "temperature"):
        definition.inputs[name].dtype = types_pb2.DT_FLOAT
    definition.defaults["temperature"].dtype = types_pb2.DT_FLOAT
    reply = get_model_metadata_pb2.GetModelMetadataResponse()
    reply.metadata["signature_def"].Pack(found)
    model = read_reply(metadata(Target("m")), reply.SerializeToString())
    assert model.signatures["serving_default"].optional == {"temperature"}


def test_a_state_that_is_not_known_here_is_an_error_of_ours() -> None:
    """A newer server may have more of them."""
    reply = b"\x0a\x04\x08\x01\x10\x63"  # version 1, state 99
    with pytest.raises(Unknown):
        read_reply(status(Target("m")), reply)


@pytest.mark.parametrize("key", ["user 7", b"user 7"])
def test_a_routing_key_travels_with_the_request(key: str | bytes) -> None:
    """Who has none is drawn by lot at every request of a split."""
    message = predict(Target("m"), {}, routing_key=key).message
    assert predict_pb2.PredictRequest.FromString(message).client_id == b"user 7"
    message = predict(Target("m"), {}).message
    assert not predict_pb2.PredictRequest.FromString(message).HasField("client_id")


def test_inputs_and_examples_are_dicts() -> None:
    """A list in place of one is refused with what is expected, not with what it lacks."""
    with pytest.raises(InvalidArgument, match=r"inputs are a dict, .*\[\[1\.0\]\]"):
        predict(Target("m"), [[1.0]])  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="an example is a dict"):
        classify(Target("m"), [[0.5, 1.0]])  # type: ignore[list-item]
