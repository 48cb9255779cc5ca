"""Classify's answers: TensorFlow Serving's rules for classes and scores."""

from __future__ import annotations

import struct

import pytest

from tfs.codec.inference_results import write_classification_response
from tfs.core.dtype import FLOAT32, FLOAT64, STRING
from tfs.core.errors import InvalidArgument
from tfs.core.tensor_view import TensorView
from tfs.proto.tensorflow_serving.apis import classification_pb2

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
