"""tfs.codec.inference_results: TensorFlow Serving's rules for classes and scores."""

from __future__ import annotations

import struct

import pytest

from tfs.codec.inference_results import (
    InferenceAnswer,
    read_multi_inference_request,
    write_classification_response,
    write_classification_result,
    write_multi_inference_response,
    write_regression_response,
    write_regression_result,
)
from tfs.codec.model_spec import ModelSpec
from tfs.core.dtype import FLOAT32, FLOAT64, STRING
from tfs.core.errors import InvalidArgument
from tfs.core.signature import Method
from tfs.core.tensor_view import TensorView
from tfs.proto.tensorflow_serving.apis import (
    classification_pb2,
    inference_pb2,
    regression_pb2,
)

SCORES = TensorView(FLOAT32, (2, 3), struct.pack("<6f", 0.5, 0, -1, 2, 3, 4))
CLASSES = TensorView(STRING, (2, 3), (b"a", b"b", b"", b"d", b"\xff", "ü".encode()))


def written(
    outputs: dict[str, TensorView], num_rows: int = 2, labels: tuple[str, ...] = ()
) -> list[list[tuple[str, float]]]:
    message = classification_pb2.ClassificationResponse.FromString(
        write_classification_response("m", 3, "sig", outputs, num_rows, labels)
    )
    assert message.model_spec.name == "m"
    assert message.model_spec.version.value == 3
    assert message.model_spec.signature_name == "sig"
    assert message.HasField("result")
    return [
        [(each.label, each.score) for each in row.classes]
        for row in message.result.classifications
    ]


def test_classes_and_scores_are_paired() -> None:
    """One row per Example; zero scores and empty labels are kept."""
    assert written({"classes": CLASSES, "scores": SCORES}) == [
        [("a", 0.5), ("b", 0.0), ("", -1.0)],
        [("d", 2.0), ("�", 3.0), ("ü", 4.0)],
    ]


def test_scores_take_the_signatures_labels() -> None:
    """A model need not repeat its class names with every answer."""
    for _ in range(2):
        assert written({"scores": SCORES}, labels=("x", "y", "z"))[0] == [
            ("x", 0.5),
            ("y", 0.0),
            ("z", -1.0),
        ]


def test_the_models_classes_win_over_labels() -> None:
    """What the model says about this row is nearer the truth."""
    rows = written({"classes": CLASSES, "scores": SCORES}, labels=("x", "y", "z"))
    assert rows[0][0] == ("a", 0.5)


def test_rows_without_classes_are_empty_rows() -> None:
    """Each Example still has its row."""
    assert written({"scores": TensorView(FLOAT32, (2, 0), b"")}) == [[], []]


def test_other_outputs_are_left_out() -> None:
    """Only classes and scores have a place in the answer."""
    assert len(written({"scores": SCORES, "logits": SCORES})) == 2


@pytest.mark.parametrize(
    ("outputs", "labels", "message"),
    [
        ({"logits": SCORES}, (), 'at least one of "classes" or "scores"'),
        (
            {"scores": TensorView(FLOAT32, (2,), bytes(8))},
            (),
            r"Expected Tensor shape: \[batch_size num_classes\] but got \[2\]",
        ),
        (
            {"classes": TensorView(STRING, (1, 1, 1), (b"a",))},
            (),
            r"Expected Tensor shape: .* but got \[1,1,1\]",
        ),
        (
            {"classes": SCORES},
            (),
            r"Expected classes Tensor of DT_STRING. Got: DT_FLOAT",
        ),
        (
            {"scores": TensorView(FLOAT64, (2, 1), bytes(16))},
            (),
            r"Expected scores Tensor of DT_FLOAT. Got: DT_DOUBLE",
        ),
        (
            {"classes": TensorView(STRING, (1, 1), (b"a",))},
            (),
            r"Expected classes output batch size of 2. Got: 1",
        ),
        (
            {"scores": TensorView(FLOAT32, (3, 1), bytes(12))},
            (),
            r"Expected scores output batch size of 2. Got: 3",
        ),
        (
            {"classes": TensorView(STRING, (2, 1), (b"a", b"b")), "scores": SCORES},
            (),
            r"match in dim_size\(1\). Got 1 vs. 3",
        ),
        ({"scores": SCORES}, ("x",), r"match in dim_size\(1\). Got 1 vs. 3"),
    ],
)
def test_outputs_of_another_form_are_refused(
    outputs: dict[str, TensorView], labels: tuple[str, ...], message: str
) -> None:
    """classifier MalformedScores, ClassesIncorrectTensorBatchSize,
    ClassesIncorrectTensorType, ScoresIncorrectTensorBatchSize,
    ScoresIncorrectTensorType, MismatchedNumberOfTensorClasses: its messages, word for
    word.
    """
    with pytest.raises(InvalidArgument, match=message):
        written(outputs, labels=labels)


DATA = struct.pack("<3f", 0.5, 0, -1)


def regressed(outputs: dict[str, TensorView], num_rows: int = 3) -> list[float]:
    message = regression_pb2.RegressionResponse.FromString(
        write_regression_response("m", 3, "sig", outputs, num_rows)
    )
    assert message.model_spec.version.value == 3
    assert message.HasField("result")
    return [each.value for each in message.result.regressions]


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
@pytest.mark.parametrize("name", ["outputs", "price"])
def test_each_example_has_its_value(shape: tuple[int, ...], name: str) -> None:
    """[rows] or [rows, 1], zeros kept; a single output may have any name."""
    assert regressed({name: TensorView(FLOAT32, shape, DATA)}) == [0.5, 0.0, -1.0]


def test_the_output_called_outputs_is_the_answer() -> None:
    """If there are several outputs, the one called "outputs" is the answer."""
    view = TensorView(FLOAT32, (3,), DATA)
    other = TensorView(FLOAT32, (3,), bytes(12))
    assert regressed({"a": other, "outputs": view}) == [0.5, 0.0, -1.0]


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({}, r"Expected one output Tensor\."),
        (
            {"outputs": TensorView(FLOAT32, (3, 2), bytes(24))},
            r"either \[batch_size\] or \[batch_size, 1\] but got \[3,2\]",
        ),
        (
            {"outputs": TensorView(FLOAT32, (), bytes(4))},
            r"either \[batch_size\] or \[batch_size, 1\] but got \[\]",
        ),
        (
            {"outputs": TensorView(FLOAT32, (2,), bytes(8))},
            r"Input batch size did not match output batch size: 3 vs. 2",
        ),
        (
            {"outputs": TensorView(FLOAT64, (3,), bytes(24))},
            r"Expected output Tensor of DT_FLOAT\.  Got: DT_DOUBLE",
        ),
    ],
)
def test_regressions_of_another_form_are_refused(
    outputs: dict[str, TensorView], message: str
) -> None:
    """regressor MalformedOutputs, UnexpectedOutputTensorSize,
    UnexpectedOutputTensorType: its messages, word for word.
    """
    with pytest.raises(InvalidArgument, match=message):
        regressed(outputs)


def test_a_request_is_taken_apart() -> None:
    """Tasks in order, absent specs told apart, and the rows."""
    message = inference_pb2.MultiInferenceRequest()
    task = message.tasks.add(method_name="tensorflow/serving/classify")
    task.model_spec.name = "m"
    task.model_spec.signature_name = "a"
    message.tasks.add(method_name="x")
    message.input.example_list.examples.add()
    request = read_multi_inference_request(message.SerializeToString())
    assert [(task.model_spec, task.method_name) for task in request.tasks] == [
        (ModelSpec("m", None, None, "a"), "tensorflow/serving/classify"),
        (None, "x"),
    ]
    assert request.input.examples == (b"",)


def test_garbage_is_refused() -> None:
    """Garbage is refused in the message and in each of its tasks."""
    for message in (b"\x0a", b"\x0a\x01\xff", b"\x0a\x03\x12\x01\xff"):
        with pytest.raises(InvalidArgument, match="cannot parse"):
            read_multi_inference_request(message)


def test_answers_are_written_in_order() -> None:
    """Each with its spec and the result of its method."""
    data = struct.pack("<2f", 1, 2)
    scores = {"scores": TensorView(FLOAT32, (1, 2), data)}
    values = {"outputs": TensorView(FLOAT32, (2,), data)}
    message = inference_pb2.MultiInferenceResponse.FromString(
        write_multi_inference_response(
            [
                InferenceAnswer(
                    ModelSpec("m", 1, None, "a"),
                    Method.CLASSIFY,
                    write_classification_result(scores, 1),
                ),
                InferenceAnswer(
                    ModelSpec("m", 1, None, "b"),
                    Method.REGRESS,
                    write_regression_result(values, 2),
                ),
            ]
        )
    )
    first, second = message.results
    assert first.model_spec.signature_name == "a"
    assert first.model_spec.version.value == 1
    classes = first.classification_result.classifications[0].classes
    assert [each.score for each in classes] == [1, 2]
    assert [each.value for each in second.regression_result.regressions] == [1, 2]
