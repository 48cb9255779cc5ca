"""Our signatures as TensorFlow's ``SignatureDef``: the only place that makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tfs.codec.tensor import BY_DTYPE, fill_tensor_proto
from tfs.core.signature import Signature, TensorSpec
from tfs.proto.tensorflow.core.protobuf import meta_graph_pb2
from tfs.proto.tensorflow_serving.apis import get_model_metadata_pb2

_PORT: Final = ":0"


def signature_def_map(
    signatures: Mapping[str, Signature],
) -> get_model_metadata_pb2.SignatureDefMap:
    """Returns the signatures by key."""
    result = get_model_metadata_pb2.SignatureDefMap()
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
