"""Reads the JSON of a Classify or Regress request, and writes their results.

An Example in JSON is an object of features; the type of a feature follows from its
values: integers, decimals, strings. TensorFlow Serving: util/json_tensor.cc.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

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


@dataclass(frozen=True, slots=True)
class ExampleBody:
    """A request about Examples. Immutable.

    Attributes:
        signature_name: As sent; empty for the default one.
        examples: The rows.
        context: Features common to all; None for none.

    """

    signature_name: str
    examples: tuple[example_pb2.Example, ...]
    context: example_pb2.Example | None

    @classmethod
    def parse(cls, body: Buffer) -> ExampleBody:
        """Parses a request.

        Raises:
            InvalidArgument: It is no such request.

        """
        document = parse_object(body)
        signature_name = signature_name_of(document)
        context = None
        if _CONTEXT in document:
            context = _example(document[_CONTEXT])
        if _EXAMPLES not in document:
            raise wrong_form(
                document,
                f"When method is classify, key '{_EXAMPLES}' is expected and was not "
                "found",
            )
        rows = document[_EXAMPLES]
        if type(rows) is not list:
            raise wrong_form(
                document, f"Expecting '{_EXAMPLES}' value to be an list/array"
            )
        if not rows:
            raise wrong_form(document, f"'{_EXAMPLES}' value is an empty array")
        return cls(signature_name, tuple(map(_example, rows)), context)

    def fill(self, message: input_pb2.Input) -> None:
        """Writes the Examples into the ``input`` of a request."""
        if self.context is None:
            message.example_list.examples.extend(self.examples)
        else:
            message.example_list_with_context.context.CopyFrom(self.context)
            message.example_list_with_context.examples.extend(self.examples)


def _example(value: Value) -> example_pb2.Example:
    if type(value) is not dict:
        raise InvalidArgument(
            f"Example must be JSON object but got JSON {type_name(value)}"
        )
    example = example_pb2.Example()
    features = example.features.feature
    for name, content in value.items():
        feature = features[name]
        for each in content if type(content) is list else (content,):
            _add(feature, name, each)
    return example


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
    """Returns the body for a serialized ``ClassificationResponse``."""
    message = classification_pb2.ClassificationResponse.FromString(response)
    return dump(
        {
            RESULTS: [
                [[each.label, _shortest(each.score)] for each in row.classes]
                for row in message.result.classifications
            ]
        }
    )


def write_regress_reply(response: bytes) -> bytes:
    """Returns the body for a serialized ``RegressionResponse``."""
    message = regression_pb2.RegressionResponse.FromString(response)
    return dump({RESULTS: [_shortest(row.value) for row in message.result.regressions]})


def _shortest(value: float) -> Any:
    """Returns a float32 that came in a message, to be written with its own digits."""
    return np.float32(value)
