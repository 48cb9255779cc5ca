"""JSON schemas of tensors and of tf.Examples, as the REST API takes and writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tfs.codec.json.tensor_reader import BYTES_KEY
from tfs.core.dtype import DType
from tfs.core.signature import FREE, FeatureKind, FeatureSpec, Signature, TensorSpec

Schema = dict[str, Any]

BYTES: Final[Schema] = {
    "type": "object",
    "properties": {BYTES_KEY: {"type": "string", "contentEncoding": "base64"}},
    "required": [BYTES_KEY],
    "additionalProperties": False,
}


def element_schema(dtype: DType) -> Schema:
    """Returns the schema of one element."""
    name = dtype.name
    if name == "string":
        return {"anyOf": [{"type": "string"}, BYTES]}
    if name == "bool":
        return {"type": "boolean"}
    if name.startswith("complex"):
        part = {"type": "number"}
        return {"type": "array", "items": part, "minItems": 2, "maxItems": 2}
    if name.startswith(("int", "uint")):
        is_signed = name.startswith("int")
        num_bits = 8 * dtype.item_bytes - is_signed
        least = -(1 << num_bits) if is_signed else 0
        # int64 is written as a number of JSON, with every digit.
        return {"type": "integer", "minimum": least, "maximum": (1 << num_bits) - 1}
    return {"type": "number", "format": name}


def tensor_schema(spec: TensorSpec, skipped: int = 0) -> Schema:
    """Returns the schema of a tensor; ``skipped`` dimensions lie outside of it."""
    schema = element_schema(spec.dtype)
    for size in reversed(spec.shape[skipped:]):
        schema = {"type": "array", "items": schema}
        if size != FREE:
            schema |= {"minItems": size, "maxItems": size}
    return schema


def object_schema(properties: Mapping[str, Schema], required: list[str]) -> Schema:
    """Returns the schema of an object; other keys may stand beside these."""
    schema: Schema = {"type": "object", "properties": dict(properties)}
    return schema | {"required": required} if required else schema


def tensors_schema(
    specs: Mapping[str, TensorSpec], skipped: int, optional: Mapping[str, Any]
) -> Schema:
    """Returns the schema of tensors by name, of which one may stand alone."""
    by_name = {name: tensor_schema(spec, skipped) for name, spec in specs.items()}
    required = [name for name in by_name if name not in optional]
    named = object_schema(by_name, required)
    if len(required) != 1:
        return named
    return {"anyOf": [by_name[required[0]], named]}


def example_schema(signature: Signature) -> Schema:
    """Returns the schema of one tf.Example in JSON."""
    required = [
        name for name, each in signature.features.items() if each.default is None
    ]
    by_name = {name: _feature(each) for name, each in signature.features.items()}
    return object_schema(by_name, required)


def _feature(feature: FeatureSpec) -> Schema:
    if feature.dtype.name == "string":
        element: Schema = {"anyOf": [{"type": "string"}, BYTES]}
    elif feature.dtype.name.startswith(("int", "uint", "bool")):
        element = {"type": "integer"}
    else:
        element = {"type": "number"}
    values: Schema = {"type": "array", "items": element}
    if feature.kind is FeatureKind.FIXED:
        num = 1
        for size in feature.shape:
            num *= size
        values |= {"minItems": num, "maxItems": num}
        if num != 1:
            return values
    return {"anyOf": [element, values]}
