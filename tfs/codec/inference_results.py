"""The answers of Classify, Regress and MultiInference, and the requests of the last.

The request of the others is :func:`tfs.codec.example_input.read_example_request`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from tfs.codec import wire
from tfs.codec.example_input import ExampleInput, read_fields, read_input
from tfs.codec.model_spec import ModelSpec, read_model_spec, write_model_spec
from tfs.codec.predict_response import spec_field
from tfs.codec.tensor import BY_DTYPE
from tfs.core.dtype import FLOAT32, STRING
from tfs.core.errors import InvalidArgument
from tfs.core.signature import Method
from tfs.core.tensor_view import Buffer, TensorView
from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import inference_pb2

CLASSES: Final = "classes"
SCORES: Final = "scores"
_PORTION_CLASSES: Final = 4_096


def write_classification_response(
    model_name: str,
    version: int,
    signature_name: str,
    outputs: Mapping[str, TensorView],
    num_rows: int,
    labels: Sequence[str] = (),
) -> bytes:
    """Returns the serialized ``ClassificationResponse``. Thread-safe.

    See :func:`write_classification_result` for ``outputs`` and what may be wrong.
    """
    result = write_classification_result(outputs, num_rows, labels)
    return wire.delimited(1, result) + spec_field(model_name, version, signature_name)


def write_classification_result(
    outputs: Mapping[str, TensorView], num_rows: int, labels: Sequence[str] = ()
) -> bytes:
    """Returns the serialized ``ClassificationResult``: one row per Example.

    Args:
        outputs: ``classes``, string [rows, classes], and ``scores``, float32 of the
            same shape, or only one of them: then labels have no scores, or scores no
            labels but those of the signature.
        num_rows: How many Examples were asked about.
        labels: The signature's names of the classes, in the order of ``scores``; used
            where the model gives no ``classes``.

    Raises:
        InvalidArgument: The outputs do not have that form; says what is wrong.

    """
    classes = outputs.get(CLASSES)
    scores = outputs.get(SCORES)
    if classes is None and scores is None:
        raise InvalidArgument(
            "Expected classification signature outputs to contain at least one of "
            f'"{CLASSES}" or "{SCORES}". Signature was: {sorted(outputs)}'
        )
    num_classes = -1
    if classes is not None:
        check_matrix(classes)
        if classes.dtype is not STRING:
            raise InvalidArgument(
                f"Expected classes Tensor of DT_STRING. Got: {type_name(classes)}"
            )
        _check_rows(CLASSES, classes, num_rows)
        num_classes = classes.shape[1]
    if scores is not None:
        check_matrix(scores)
        if scores.dtype is not FLOAT32:
            raise InvalidArgument(
                f"Expected scores Tensor of DT_FLOAT. Got: {type_name(scores)}"
            )
        _check_rows(SCORES, scores, num_rows)
        if num_classes < 0:
            num_classes = len(labels) or scores.shape[1]
        if scores.shape[1] != num_classes:
            raise InvalidArgument(
                "Tensors class and score should match in dim_size(1). Got "
                f"{num_classes} vs. {scores.shape[1]}"
            )
    if not num_classes:
        return b"\x0a\x00" * num_rows
    label_heads: tuple[bytes, ...] = ()
    if classes is None:
        label_heads = _label_heads(tuple(labels) or ("",) * num_classes)
    # Some rows at a time: what is made of a million classes takes hundreds of megabytes.
    step = max(1, _PORTION_CLASSES // num_classes)
    portions = [
        _write_rows(
            classes, scores, label_heads, num_classes, row, min(row + step, num_rows)
        )
        for row in range(0, num_rows, step)
    ]
    return portions[0] if len(portions) == 1 else b"".join(portions)


def _write_rows(
    classes: TensorView | None,
    scores: TensorView | None,
    label_heads: Sequence[bytes],
    num_classes: int,
    first: int,
    stop: int,
) -> bytes:
    """Returns the results of some Examples; without classes, ``label_heads`` are used."""
    start, end = first * num_classes, stop * num_classes
    if scores is None:
        names = _strings(classes, start, end)
        parts = [wire.delimited(1, wire.delimited(1, name)) for name in names]
    else:
        data = bytes(scores.buffer[4 * start : 4 * end])
        if classes is not None:
            heads = [_class_head(label) for label in _strings(classes, start, end)]
        else:
            heads = list(label_heads) * (stop - first)
        parts = [
            head + data[4 * index : 4 * index + 4] for index, head in enumerate(heads)
        ]
    return b"".join(
        [
            wire.delimited(1, b"".join(parts[index : index + num_classes]))
            for index in range(0, end - start, num_classes)
        ]
    )


def check_matrix(view: TensorView) -> None:
    """Refuses tensors that are not [rows, classes].

    Raises:
        InvalidArgument: It has another rank.

    """
    if len(view.shape) != 2:
        raise InvalidArgument(
            "Expected Tensor shape: [batch_size num_classes] but got "
            f"{shape_text(view)}"
        )


def type_name(view: TensorView) -> str:
    """Returns TensorFlow's name of the dtype: DT_FLOAT."""
    return types_pb2.DataType.Name(BY_DTYPE[view.dtype].number)


def shape_text(view: TensorView) -> str:
    """Returns the shape as TensorFlow prints it: [2,3]."""
    return "[" + ",".join(map(str, view.shape)) + "]"


def _check_rows(name: str, view: TensorView, num_rows: int) -> None:
    if view.shape[0] != num_rows:
        raise InvalidArgument(
            f"Expected {name} output batch size of {num_rows}. Got: {view.shape[0]}"
        )


def _strings(view: TensorView | None, start: int, stop: int) -> list[bytes]:
    """Returns some of the labels in a tensor, converted to UTF-8 if they are not."""
    assert view is not None
    return [
        bytes(each).decode(errors="replace").encode()
        for each in view.strings[start:stop]
    ]


def _class_head(label: bytes) -> bytes:
    """Returns a Class, as a field of its row, except for the four bytes of its score."""
    start = wire.delimited(1, label) if label else b""
    start += b"\x15"
    return b"\x0a" + wire.varint(len(start) + 4) + start


@functools.lru_cache(maxsize=64)
def _label_heads(labels: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple([_class_head(label.encode()) for label in labels])


OUTPUTS: Final = "outputs"


def write_regression_response(
    model_name: str,
    version: int,
    signature_name: str,
    outputs: Mapping[str, TensorView],
    num_rows: int,
) -> bytes:
    """Returns the serialized ``RegressionResponse``. Thread-safe.

    See :func:`write_regression_result` for ``outputs`` and what may be wrong.
    """
    result = write_regression_result(outputs, num_rows)
    return wire.delimited(1, result) + spec_field(model_name, version, signature_name)


def write_regression_result(outputs: Mapping[str, TensorView], num_rows: int) -> bytes:
    """Returns the serialized ``RegressionResult``: one value per Example.

    Args:
        outputs: ``outputs``, or a single tensor of any name: float32 [rows] or
            [rows, 1].
        num_rows: How many Examples were asked about.

    Raises:
        InvalidArgument: The outputs do not have that form; says what is wrong.

    """
    view = outputs.get(OUTPUTS)
    if view is None:
        if len(outputs) != 1:
            raise InvalidArgument("Expected one output Tensor.")
        (view,) = outputs.values()
    shape = view.shape
    if len(shape) != 1 and not (len(shape) == 2 and shape[1] == 1):
        raise InvalidArgument(
            "Expected output Tensor shape to be either [batch_size] or "
            f"[batch_size, 1] but got {shape_text(view)}"
        )
    if shape[0] != num_rows:
        raise InvalidArgument(
            "Input batch size did not match output batch size: "
            f"{num_rows} vs. {shape[0]}"
        )
    if view.dtype is not FLOAT32:
        raise InvalidArgument(
            f"Expected output Tensor of DT_FLOAT.  Got: {type_name(view)}"
        )
    data = bytes(view.buffer)
    return b"".join(
        # A Regression of five bytes: the tag of its value, and four of the value.
        [b"\x0a\x05\x0d" + data[start : start + 4] for start in range(0, len(data), 4)]
    )


@dataclass(frozen=True, slots=True)
class InferenceTaskView:
    """One task of a request. Immutable.

    Attributes:
        model_spec: Model and signature; None if the task has none.
        method_name: ``tensorflow/serving/classify`` or ``.../regress``, as sent.

    """

    model_spec: ModelSpec | None
    method_name: str


@dataclass(frozen=True, slots=True)
class MultiInferenceRequest:
    """A parsed ``MultiInferenceRequest``. Immutable.

    Attributes:
        tasks: The questions, in the order sent.
        input: The rows; empty if the request has none.

    """

    tasks: tuple[InferenceTaskView, ...]
    input: ExampleInput


@dataclass(frozen=True, slots=True)
class InferenceAnswer:
    """The answer to one task. Immutable.

    Attributes:
        model_spec: The task's, with the version that answered.
        method: CLASSIFY or REGRESS: which result it is.
        result: Serialized ``ClassificationResult`` or ``RegressionResult``.

    """

    model_spec: ModelSpec
    method: Method
    result: bytes


def read_multi_inference_request(message: Buffer) -> MultiInferenceRequest:
    """Reads a MultiInference request. Thread-safe.

    Raises:
        InvalidArgument: Not such a request. Malformed Examples are found later.

    """
    parts, input_parts = read_fields(message)
    return MultiInferenceRequest(
        tuple([_task(part) for part in parts]), read_input(input_parts)
    )


def write_multi_inference_response(answers: Sequence[InferenceAnswer]) -> bytes:
    """Returns the serialized ``MultiInferenceResponse``, answers in this order."""
    results = []
    for answer in answers:
        number = _RESULT_FIELD[answer.method]
        spec = wire.delimited(1, write_model_spec(answer.model_spec))
        results.append(wire.delimited(1, spec + wire.delimited(number, answer.result)))
    return b"".join(results)


_RESULT_FIELD = {Method.CLASSIFY: 2, Method.REGRESS: 3}


def _task(part: bytes) -> InferenceTaskView:
    try:
        task = inference_pb2.InferenceTask.FromString(part)
    except DecodeError as error:
        raise InvalidArgument(f"cannot parse a task: {error}") from error
    if not task.HasField("model_spec"):
        return InferenceTaskView(None, task.method_name)
    spec = read_model_spec(task.model_spec.SerializeToString())
    return InferenceTaskView(spec, task.method_name)
