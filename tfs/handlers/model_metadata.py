"""PredictionService.GetModelMetadata: the signatures of a version."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

from tfs.codec.model_spec import ModelSpec, model_spec_of
from tfs.codec.tensor import BY_DTYPE, fill_tensor_proto
from tfs.core.call import Call
from tfs.core.errors import InvalidArgument, ServingError
from tfs.core.servable_id import ServableId
from tfs.core.signature import Signature, TensorSpec
from tfs.handlers.decode_pool import DecodePool
from tfs.handlers.message_limits import QUESTION_BYTES, parse
from tfs.handlers.model_lookup import ModelLookup, NotResident
from tfs.proto.tensorflow.core.protobuf import meta_graph_pb2
from tfs.proto.tensorflow_serving.apis import get_model_metadata_pb2 as pb

SIGNATURE_DEF: Final = "signature_def"
_QUICK_TENSORS: Final = 256


class ModelMetadataHandler:
    """Answers GetModelMetadata. Confined to the serving loop.

    (TensorFlow Serving: servables/tensorflow/get_model_metadata_impl.cc.)
    """

    def __init__(
        self, lookup: ModelLookup, decode_pool: DecodePool | None = None
    ) -> None:
        self._lookup = lookup
        self._decode_pool = decode_pool or DecodePool()

    def __call__(self, call: Call) -> None:
        """Replies with name, version and the signatures."""
        try:
            spec = _asked(call.message)
            with self._lookup.look_at(
                spec.name, spec.version, spec.version_label
            ) as servable:
                who, signatures = servable.id, servable.signatures
            self._decode_pool.reply(
                call,
                functools.partial(_answer, who, signatures),
                is_long=_takes_long(signatures),
            )
        except NotResident as absent:
            absent.then(call, lambda: self(call), call.fail)
        except ServingError as error:
            call.fail(error)


def _asked(message: bytes | memoryview) -> ModelSpec:
    request = parse(pb.GetModelMetadataRequest, message, QUESTION_BYTES)
    if not request.HasField("model_spec"):
        raise InvalidArgument("Missing ModelSpec")
    if not request.metadata_field:
        raise InvalidArgument(
            "GetModelMetadataRequest must specify at least one metadata_field"
        )
    for field in request.metadata_field:
        if field != SIGNATURE_DEF:
            raise InvalidArgument(f"Metadata field {field} is not supported")
    return model_spec_of(request.model_spec)


def _answer(who: ServableId, signatures: Mapping[str, Signature]) -> bytes:
    response = pb.GetModelMetadataResponse()
    response.model_spec.name = who.name
    response.model_spec.version.value = who.version
    response.metadata[SIGNATURE_DEF].Pack(signature_def_map(signatures))
    return response.SerializeToString()


def _takes_long(signatures: Mapping[str, Signature]) -> bool:
    """Tells whether there are over a few hundred tensors, which take 4 us each."""
    num_tensors = sum(
        len(each.inputs)
        + len(each.outputs)
        + sum(view.num_elements for view in each.defaults.values())
        for each in signatures.values()
    )
    return num_tensors > _QUICK_TENSORS


_PORT: Final = ":0"


def signature_def_map(
    signatures: Mapping[str, Signature],
) -> pb.SignatureDefMap:
    """Returns the signatures by key."""
    result = pb.SignatureDefMap()
    for key, signature in signatures.items():
        _fill(result.signature_def[key], key, signature)
    return result


def _fill(
    definition: meta_graph_pb2.SignatureDef, key: str, signature: Signature
) -> None:
    definition.method_name = signature.method.method_name
    for name, spec in signature.inputs.items():
        _fill_info(definition.inputs[name], f"{key}_{name}{_PORT}", spec)
    for name, spec in signature.outputs.items():
        _fill_info(definition.outputs[name], f"{key}_{name}{_PORT}", spec)
    for name, view in signature.defaults.items():
        fill_tensor_proto(definition.defaults[name], view)


def _fill_info(info: meta_graph_pb2.TensorInfo, name: str, spec: TensorSpec) -> None:
    # Clients do not look inside the tensor name, but some insist that there is one.
    info.name = name
    info.dtype = BY_DTYPE[spec.dtype].number  # type: ignore[assignment]  # an enum
    info.tensor_shape.SetInParent()  # a scalar has a shape, too
    for size in spec.shape:
        info.tensor_shape.dim.add(size=size)
