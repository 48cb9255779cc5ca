"""tf.Examples for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfs.codec.example_input import ExampleInput
from tfs.proto.tensorflow.core.example import example_pb2

Values = Sequence[float] | Sequence[int] | Sequence[bytes] | None


def an_example(features: Mapping[str, Values]) -> example_pb2.Example:
    proto = example_pb2.Example()
    for name, values in features.items():
        feature = proto.features.feature[name]
        if values is None:
            continue
        if not values or isinstance(values[0], float):
            feature.float_list.SetInParent()
            feature.float_list.value.extend(values)  # type: ignore[arg-type]
        elif isinstance(values[0], bytes):
            feature.bytes_list.value.extend(values)  # type: ignore[arg-type]
        else:
            feature.int64_list.value.extend(values)  # type: ignore[arg-type]
    return proto


def rows(
    *examples: Mapping[str, Values], context: Mapping[str, Values] | None = None
) -> ExampleInput:
    return ExampleInput(
        tuple(an_example(each).SerializeToString() for each in examples),
        b"" if context is None else an_example(context).SerializeToString(),
    )
