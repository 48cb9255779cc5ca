"""Reads the JSON of a Classify or Regress request, and writes their results.

An Example in JSON is an object of features; the type of a feature follows from its
values: integers, decimals, strings. TensorFlow Serving: util/json_tensor.cc.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tfs.codec.json.document import (
    Value,
    parse_object,
    signature_name_of,
    type_name,
    wrong_form,
)
from tfs.codec.json.tensor_reader import bytes_of, is_bytes
from tfs.codec.json.tensor_writer import dump
from tfs.core.errors import InvalidArgument
from tfs.core.tensor_view import Buffer
from tfs.proto.tensorflow.core.example import example_pb2, feature_pb2
from tfs.proto.tensorflow_serving.apis import (
    classification_pb2,
    input_pb2,
    regression_pb2,
)

RESULTS: Final = "results"
_EXAMPLES: Final = "examples"
_CONTEXT: Final = "context"


def read_examples(body: Buffer, into: input_pb2.Input) -> str:
    """Reads a request: fills an empty message, and returns the signature's name.

    Empty for the default one. The features of ``context`` are common to all examples.

    Raises:
        InvalidArgument: It is no such request.

    """
    document = parse_object(body)
    examples = into.example_list.examples
    if _CONTEXT in document:
        _fill(into.example_list_with_context.context, document[_CONTEXT])
        examples = into.example_list_with_context.examples
    if _EXAMPLES not in document:
        raise wrong_form(
            document,
            f"When method is classify, key '{_EXAMPLES}' is expected and was not found",
        )
    rows = document[_EXAMPLES]
    if type(rows) is not list:
        raise wrong_form(document, f"Expecting '{_EXAMPLES}' value to be an list/array")
    if not rows:
        raise wrong_form(document, f"'{_EXAMPLES}' value is an empty array")
    for row in rows:
        _fill(examples.add(), row)
    return signature_name_of(document)


def _fill(example: example_pb2.Example, value: Value) -> None:
    if type(value) is not dict:
        raise InvalidArgument(
            f"Example must be JSON object but got JSON {type_name(value)}"
        )
    for name, content in value.items():
        feature = example.features.feature[name]
        for each in content if type(content) is list else (content,):
            _add(feature, name, each)


def _add(feature: feature_pb2.Feature, name: str, value: Value) -> None:
    if isinstance(value, str) or is_bytes(value):
        kind = "bytes"
    elif isinstance(value, bool | int):
        kind, value = "int64", int(value)
    elif isinstance(value, float):
        kind = "float"
    else:
        raise InvalidArgument(
            f"Feature: {name} has element with unexpected JSON type: {type_name(value)}"
        )
    expected = (feature.WhichOneof("kind") or kind).removesuffix("_list")
    if kind != expected:
        raise InvalidArgument(
            f"Unexpected element type in feature: {name} expecting type: {expected}"
        )
    if kind == "bytes":
        value = bytes_of(value)
    elif kind == "int64" and not -(1 << 63) <= value < 1 << 63:
        raise InvalidArgument(
            f"Feature: {name} has uint64_t element. Only int64_t is supported."
        )
    getattr(feature, f"{kind}_list").value.append(value)


def write_classify_reply(response: bytes) -> bytes:
    """Returns the body for a serialized ``ClassificationResponse``.

    A score came as a float32 and is written with its own digits.
    """
    message = classification_pb2.ClassificationResponse.FromString(response)
    return dump(
        {
            RESULTS: [
                [[each.label, np.float32(each.score)] for each in row.classes]
                for row in message.result.classifications
            ]
        }
    )


def write_regress_reply(response: bytes) -> bytes:
    """Returns the body for a serialized ``RegressionResponse``."""
    message = regression_pb2.RegressionResponse.FromString(response)
    return dump(
        {RESULTS: [np.float32(row.value) for row in message.result.regressions]}
    )
