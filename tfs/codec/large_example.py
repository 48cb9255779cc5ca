"""Large features of a tf.Example, read without message objects.

This is a strict reader of what serializers normally write: the map of features, each
with one list of one kind, and its numbers packed. It refuses everything else, whether
malformed or merely unusual; message objects are used then (tfs.codec.example). It reads
in portions, so that other threads need not wait (tfs.codec.portions).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from tfs.codec import wire
from tfs.codec.portions import PORTION_BYTES, read_strings, varint_portions
from tfs.core.errors import InvalidArgument
from tfs.proto.tensorflow.core.example import feature_pb2

_KINDS: Final = {1: "bytes_list", 2: "float_list", 3: "int64_list"}
_LIST_TAG: Final = 0x0A  # the tag of `value` in each kind of list
_SMALL_BYTES: Final = 65_536


class UnusualError(Exception):
    """The message has a form that this reader does not know."""


@dataclass(frozen=True, slots=True)
class LargeFeature:
    """One feature whose values are still serialized. Immutable.

    Attributes:
        kind: The name of its list.
        values: Packed, or all strings with their tags.

    """

    kind: str
    values: memoryview

    def strings(self) -> tuple[bytes, ...]:
        """Returns the values of a ``bytes_list``."""
        size = len(self.values)
        strings, _, _ = read_strings(self.values, 0, size, _LIST_TAG, size)
        return tuple(strings)

    def floats(self) -> Iterator[Sequence[float]]:
        """Yields the values of a ``float_list``, a portion at a time."""
        for start in range(0, len(self.values), PORTION_BYTES):
            yield self.values[start : start + PORTION_BYTES].cast("f").tolist()

    def integers(self) -> Iterator[Sequence[int]]:
        """Yields the values of an ``int64_list``, a portion at a time.

        Raises:
            InvalidArgument: Some varint is malformed.

        """
        try:
            for part in varint_portions(self.values):
                packed = b"\x0a" + wire.varint(len(part)) + part
                yield feature_pb2.Int64List.FromString(packed).value[:]
        except (DecodeError, wire.MalformedError) as error:
            raise InvalidArgument("could not be parsed as tf.Example") from error


def read_features(
    example: bytes, most: int
) -> dict[str, feature_pb2.Feature | LargeFeature]:
    """Returns an Example's features; small ones as messages.

    Args:
        example: Serialized.
        most: Most features; an Example with more is unusual.

    The integers of a large feature are read only when they are asked for. So in
    features that the signature does not use, malformed ones pass, as in TensorFlow's
    parser.

    Raises:
        UnusualError: It is malformed, or not as serializers write it.

    """
    features: dict[str, feature_pb2.Feature | LargeFeature] = {}
    whole = memoryview(example)
    try:
        ((number, kind, start, stop),) = wire.fields(example, 0, len(example))
        if number != 1 or kind != wire.DELIMITED:
            raise UnusualError
        for number, kind, low, high in wire.fields(example, start, stop):
            if number != 1 or kind != wire.DELIMITED or len(features) >= most:
                raise UnusualError
            key, value = wire.fields(example, low, high)
            if key[:2] != (1, wire.DELIMITED) or value[:2] != (2, wire.DELIMITED):
                raise UnusualError
            name = str(whole[key[2] : key[3]], "utf-8")
            if name in features:
                raise UnusualError
            if value[3] - value[2] <= _SMALL_BYTES:
                features[name] = feature_pb2.Feature.FromString(
                    bytes(whole[value[2] : value[3]])
                )
            else:
                features[name] = _large(example, whole, value[2], value[3])
    except (ValueError, IndexError, DecodeError):  # MalformedError, UnicodeDecodeError
        raise UnusualError from None
    return features


def _large(example: bytes, whole: memoryview, start: int, stop: int) -> LargeFeature:
    ((number, wire_kind, low, high),) = wire.fields(example, start, stop)
    kind = _KINDS.get(number)
    if kind is None or wire_kind != wire.DELIMITED:
        raise UnusualError
    if kind == "bytes_list":
        _, _, end = read_strings(example, low, high, _LIST_TAG, 0)
        if end != high:
            raise UnusualError
        return LargeFeature(kind, whole[low:high])
    ((number, wire_kind, first, last),) = wire.fields(example, low, high)
    if number != 1 or wire_kind != wire.DELIMITED:
        raise UnusualError
    if kind == "float_list" and (last - first) % 4:
        raise UnusualError
    return LargeFeature(kind, whole[first:last])
