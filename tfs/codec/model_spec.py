"""The model that a request names, as a value independent of message objects.

The only module that touches ``ModelSpec.version``: its wrapper type lives in our
private descriptor pool, so ``Int64Value`` objects of the default pool do not fit it
(assign ``spec.version.value``, or pass ``version={"value": 3}``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from tfs.codec import wire
from tfs.core.errors import InvalidArgument
from tfs.core.signature import DEFAULT_SIGNATURE
from tfs.proto.tensorflow_serving.apis import classification_pb2, model_pb2


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A parsed ``tensorflow.serving.ModelSpec``. Immutable.

    Attributes:
        name: The model; may be empty, which is for the look-up to refuse.
        version: The version asked for; None when none was.
        version_label: The label asked for; None when none was. Never both.
        signature_name: The signature as it was sent; empty means the default one.

    """

    name: str
    version: int | None = None
    version_label: str | None = None
    signature_name: str = ""

    @property
    def signature_key(self) -> str:
        """The key of the signature: as sent, or the default key."""
        return self.signature_name or DEFAULT_SIGNATURE


def model_spec_of(proto: model_pb2.ModelSpec) -> ModelSpec:
    """Returns the value a message holds."""
    choice = proto.WhichOneof("version_choice")
    return ModelSpec(
        proto.name,
        proto.version.value if choice == "version" else None,
        proto.version_label if choice == "version_label" else None,
        proto.signature_name,
    )


def fill_model_spec(proto: model_pb2.ModelSpec, spec: ModelSpec) -> None:
    """Writes ``spec`` into an empty message."""
    proto.name = spec.name
    if spec.version is not None:
        # SetInParent: version 0 must be present too, not just equal to the default.
        proto.version.SetInParent()
        proto.version.value = spec.version
    elif spec.version_label is not None:
        proto.version_label = spec.version_label
    proto.signature_name = spec.signature_name


def read_model_spec(message: bytes) -> ModelSpec:
    """Parses a request's serialized ``ModelSpec``, as protobuf would within the request.

    Thread-safe; recent ones are remembered.

    Raises:
        InvalidArgument: It is not one.

    """
    spec = _recent.get(message)
    if spec is None:
        spec = merged_model_spec((message,))
        if len(message) <= _MAX_REMEMBERED_BYTES:
            if len(_recent) >= _MAX_REMEMBERED:
                _recent.clear()
            _recent[message] = spec
    return spec


def merged_model_spec(parts: Sequence[bytes]) -> ModelSpec:
    """Parses a ``ModelSpec`` that came in parts, by protobuf's rules for merging them.

    Raises:
        InvalidArgument: A part is not one by itself.

    """
    # It is parsed as the field of a request, in which it may nest one level less
    # deeply.
    request = b"".join([wire.delimited(1, part) for part in parts])
    try:
        return model_spec_of(
            classification_pb2.ClassificationRequest.FromString(request).model_spec
        )
    except DecodeError as error:
        raise InvalidArgument(f"cannot parse the model_spec: {error}") from error


def write_model_spec(spec: ModelSpec) -> bytes:
    """Returns ``spec`` serialized."""
    proto = model_pb2.ModelSpec()
    fill_model_spec(proto, spec)
    return proto.SerializeToString()


# A server sees the same few specs over and over. The cache is written and cleared under
# the GIL; a lost entry costs one parse.
_MAX_REMEMBERED = 1024
_MAX_REMEMBERED_BYTES = 512
_recent: dict[bytes, ModelSpec] = {}
