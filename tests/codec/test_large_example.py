"""Large features are read as message objects read them."""

from __future__ import annotations

import struct

import pytest

from tests.codec.examples import Values, an_example
from tfs.codec import example as example_module
from tfs.codec import wire
from tfs.codec.decode_options import MAX_FIELDS
from tfs.codec.example import tensors_of_examples
from tfs.codec.example_input import ExampleInput
from tfs.codec.large_example import LargeFeature, UnusualError, read_features
from tfs.core import dtype as dtypes
from tfs.core.dtype import DType
from tfs.core.errors import ServingError
from tfs.core.signature import FeatureKind, FeatureSpec, Method, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.proto.tensorflow.core.example import example_pb2, feature_pb2

FLOATS: Values = [index / 7 for index in range(300_000)]
INTEGERS: Values = [(-3) ** (index % 35) for index in range(200_000)]
SMALL_INTEGERS: Values = [index % 100 for index in range(1_100_000)]
STRINGS: Values = [b"x" * (index % 300) for index in range(10_000)]


def _signature(dtype: DType, size: int | None) -> Signature:
    kind = FeatureKind.VARLEN if size is None else FeatureKind.FIXED
    shape = () if size is None else (size,)
    return Signature(
        Method.CLASSIFY,
        {"x": TensorSpec(dtype, (-1, -1))},
        {"scores": TensorSpec(dtypes.FLOAT32, (-1, 2))},
        features={"f": FeatureSpec("x", kind, dtype, shape)},
    )


def _read(serialized: bytes, signature: Signature) -> dict[str, TensorView] | str:
    try:
        return tensors_of_examples(ExampleInput((serialized,)), signature)
    except ServingError as error:
        return str(error)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (FLOATS, dtypes.FLOAT32),
        (FLOATS, dtypes.FLOAT64),
        (FLOATS, dtypes.INT64),
        (INTEGERS, dtypes.INT64),
        (INTEGERS, dtypes.FLOAT32),
        (INTEGERS, dtypes.INT32),
        (SMALL_INTEGERS, dtypes.INT32),
        (SMALL_INTEGERS, dtypes.BOOL),
        (STRINGS, dtypes.STRING),
        (STRINGS, dtypes.FLOAT32),
    ],
)
def test_a_large_feature_is_read_as_by_message_objects(
    values: list[float], dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same values, same refusals: of another kind, or beyond the dtype's range."""
    serialized = an_example({"f": values, "other": [1.0]}).SerializeToString()
    assert len(serialized) > 1 << 20
    for size in (None, len(values), 7):
        signature = _signature(dtype, size)
        read = _read(serialized, signature)
        with monkeypatch.context() as patch:
            patch.setattr(example_module, "_LARGE_EXAMPLE_BYTES", len(serialized))
            assert read == _read(serialized, signature)


def test_what_is_large_is_read_without_message_objects() -> None:
    """Small features beside it are messages."""
    serialized = an_example({"f": FLOATS, "g": [1, 2]}).SerializeToString()
    features = read_features(serialized, 2)
    assert isinstance(features["f"], LargeFeature)
    assert isinstance(features["g"], feature_pb2.Feature)


def test_malformed_integers_name_the_example() -> None:
    """The error for malformed integers names the example's index."""
    packed = b"\x80" * 2_000_000
    feature = wire.delimited(3, wire.delimited(1, packed))
    entry = wire.delimited(1, b"f") + wire.delimited(2, feature)
    serialized = wire.delimited(1, wire.delimited(1, entry))
    expected = "example 0: could not be parsed as tf.Example"
    assert expected in str(_read(serialized, _signature(dtypes.INT64, None)))


def _entry(*parts: bytes) -> bytes:
    return wire.delimited(1, wire.delimited(1, b"".join(parts)))


KEY = wire.delimited(1, b"f")
LARGE_FLOATS = wire.delimited(1, bytes(400_000))
LARGE = wire.delimited(2, wire.delimited(2, LARGE_FLOATS))


@pytest.mark.parametrize(
    "serialized",
    [
        _entry(KEY, LARGE) * 2,
        _entry(KEY, LARGE, LARGE),
        _entry(LARGE, KEY),
        _entry(LARGE),
        _entry(KEY),
        _entry(wire.delimited(1, b"\xff"), LARGE),
        _entry(KEY, LARGE) + b"\x78\x01",
        _entry(KEY, LARGE)[:-1],
        _entry(KEY, wire.delimited(2, wire.delimited(2, LARGE_FLOATS * 2))),
        _entry(KEY, wire.delimited(2, wire.delimited(2, LARGE_FLOATS) * 2)),
        _entry(KEY, wire.delimited(2, wire.delimited(9, LARGE_FLOATS))),
        _entry(
            KEY,
            wire.delimited(
                2, wire.delimited(2, (b"\x0d" + struct.pack("<f", 1)) * 50_000)
            ),
        ),
        _entry(
            KEY, wire.delimited(2, wire.delimited(2, wire.delimited(1, bytes(400_001))))
        ),
        b"",
    ],
)
def test_what_is_unusual_is_left_to_message_objects(serialized: bytes) -> None:
    """Repeated, unknown, unpacked or malformed: nothing is guessed."""
    with pytest.raises(UnusualError):
        read_features(serialized, MAX_FIELDS)


def test_more_features_than_anybody_means_are_not_read() -> None:
    """The bound is the caller's."""
    example = example_pb2.Example()
    for index in range(5):
        example.features.feature[str(index)].int64_list.value.append(1)
    serialized = example.SerializeToString()
    assert len(read_features(serialized, 5)) == 5
    with pytest.raises(UnusualError):
        read_features(serialized, 4)
