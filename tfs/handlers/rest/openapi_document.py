"""Describes the REST API of models as an OpenAPI document. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from tfs.codec.json.document import SIGNATURE_NAME
from tfs.codec.json.predict_body import INPUTS, INSTANCES
from tfs.codec.json.tensor_reader import BYTES_KEY
from tfs.codec.json.tensor_writer import (
    OUTPUTS,
    PREDICTIONS,
    array_of,
    dump,
    json_value,
)
from tfs.core.dtype import BOOL, STRING, DType
from tfs.core.errors import ServingError
from tfs.core.servable import Tensors
from tfs.core.signature import (
    DEFAULT_SIGNATURE,
    FREE,
    FeatureKind,
    FeatureSpec,
    Method,
    Signature,
    TensorSpec,
)

Schema = dict[str, Any]

_MAX_EXAMPLE_ELEMENTS: Final = 4096  # longer ones are no use on a page
_JSON: Final = "application/json"
PREDICT: Final = "predict"
_ERROR: Final = {"$ref": "#/components/responses/Error"}


@dataclass(frozen=True, slots=True)
class DescribedModel:
    """A version that answers requests. Immutable.

    Attributes:
        name: The model.
        version: Which version was looked at.
        signatures: By key.
        examples: Inputs that it takes, by signature.
        suffix: Of its path: the version or label, if one was asked for.

    """

    name: str
    version: int
    signatures: Mapping[str, Signature]
    examples: Mapping[str, Tensors]
    suffix: str = ""

    @property
    def path(self) -> str:
        """Where it is in the REST API."""
        return f"/v1/models/{quote(self.name, safe='')}{self.suffix}"


def openapi_document(
    models: Iterable[DescribedModel], release: str, more: str = ""
) -> Sequence[bytes]:
    """Returns the document for some models, in a piece for each, which stops nobody long.

    Args:
        models: The models; taken one by one.
        release: The server's.
        more: Where others are described.

    """
    error = _object_schema({"error": {"type": "string"}}, ["error"])
    frame = {
        "openapi": "3.1.0",
        "info": {
            "title": "TFS",
            "version": release,
            "description": "TensorFlow Serving's REST API of the models on this server. "
            f"NaN, Infinity and -Infinity are numbers here.{more}",
        },
        "components": {
            "schemas": {"Error": error},
            "responses": {
                "Error": {
                    "description": "What is wrong, and what to do.",
                    "content": {
                        _JSON: {"schema": {"$ref": "#/components/schemas/Error"}}
                    },
                }
            },
        },
    }
    parts = [dump(frame)[:-1] + b',"paths":{']
    comma = b""
    for model in models:
        parts.append(comma + dump(_paths_of(model))[1:-1])
        comma = b","
    return (*parts, b"}}")


def methods_of(signature: Signature) -> Sequence[str]:
    """Returns by which methods a signature can be asked."""
    if not signature.features:
        return (PREDICT,)
    is_regress = signature.method is Method.REGRESS
    return PREDICT, "regress" if is_regress else "classify"


def request_example(
    method: str, signature_name: str, signature: Signature, inputs: Tensors
) -> dict[str, Any] | None:
    """Returns the body of a request with these inputs; None if it has no short form.

    Arrays in it are numpy's; see :func:`tfs.codec.json.tensor_writer.dump`.
    """
    inputs = {
        key: view for key, view in inputs.items() if key not in signature.defaults
    }
    num = sum(view.num_elements for view in inputs.values())
    if not inputs or num > _MAX_EXAMPLE_ELEMENTS:
        return None
    try:
        values = {name: _plain(name, view) for name, view in inputs.items()}
    except ServingError:
        return None
    body: dict[str, Any] = {}
    if signature_name != DEFAULT_SIGNATURE:
        body[SIGNATURE_NAME] = signature_name
    if method != PREDICT:
        if any(each.input not in inputs for each in signature.features.values()):
            return None
        example = {
            name: _feature_values(name, inputs[feature.input])
            for name, feature in signature.features.items()
        }
        return body | {"examples": [example]} if example else None
    if not signature.batched:
        return body | {INPUTS: values}
    if len(values) == 1:
        return body | {INSTANCES: next(iter(values.values()))}
    num_rows = min(view.num_rows for view in inputs.values())
    rows = [
        {name: column[row] for name, column in values.items()}
        for row in range(num_rows)
    ]
    return body | {INSTANCES: rows}


def _plain(name: str, view: Any) -> Any:
    if view.dtype is STRING and not all(map(_is_text, view.strings)):
        name = f"{name}_bytes"
    return json_value(name, view)


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _feature_values(name: str, view: Any) -> Any:
    row = view.rows(0, 1) if view.shape else view
    if view.dtype is STRING:
        return _plain(name, type(view)(STRING, (len(row.strings),), row.strings))
    values = array_of(row).ravel()
    return values.astype(int) if values.dtype.kind == "b" else values


def _paths_of(model: DescribedModel) -> Mapping[str, Any]:
    base, tag = model.path, model.name
    paths: dict[str, Any] = {}
    by_method: dict[str, dict[str, Signature]] = {}
    for name, signature in model.signatures.items():
        for method in methods_of(signature):
            by_method.setdefault(method, {})[name] = signature
    for method, signatures in by_method.items():
        paths[f"{base}:{method}"] = {"post": _operation(model, tag, method, signatures)}
    answer = {"description": "In protobuf's JSON.", "content": {_JSON: {"schema": {}}}}
    for path, summary in (
        (base, "Versions and their states"),
        (f"{base}/metadata", "Signatures"),
    ):
        paths[path] = {
            "get": {
                "tags": [tag],
                "summary": summary,
                "responses": {"200": answer, "default": _ERROR},
            }
        }
    return paths


def _operation(
    model: DescribedModel, tag: str, method: str, signatures: Mapping[str, Signature]
) -> Schema:
    bodies: list[Schema] = []
    answers: list[Schema] = []
    examples: dict[str, Schema] = {}
    for name, signature in signatures.items():
        key = {} if name == DEFAULT_SIGNATURE else {SIGNATURE_NAME: {"const": name}}
        if method == PREDICT:
            bodies += _predict_bodies(key, signature)
            answers += _predict_answers(signature)
        else:
            rows = {"type": "array", "items": _example_schema(signature), "minItems": 1}
            bodies.append(_body(key, "examples", rows))
            answers.append(_body({}, "results", {"type": "array"}))
        inputs = model.examples.get(name, {})
        value = request_example(method, name, signature, inputs)
        if value is not None:
            examples[name] = {"value": value}
    content: Schema = {"schema": {"anyOf": bodies}}
    if examples:
        content["examples"] = examples
    return {
        "tags": [tag],
        "summary": f"{method.capitalize()} with {model.name} {model.version}",
        "requestBody": {"required": True, "content": {_JSON: content}},
        "responses": {
            "200": {
                "description": "The answer.",
                "content": {_JSON: {"schema": {"anyOf": answers}}},
            },
            "default": _ERROR,
        },
    }


def _predict_bodies(key: Schema, signature: Signature) -> list[Schema]:
    optional = signature.defaults
    columns = _tensors_schema(signature.inputs, 0, optional)
    bodies = [_body(key, INPUTS, columns)]
    if signature.batched:
        row = _tensors_schema(signature.inputs, 1, optional)
        rows = {"type": "array", "items": row, "minItems": 1}
        bodies.append(_body(key, INSTANCES, rows))
    return bodies


def _predict_answers(signature: Signature) -> list[Schema]:
    def schema(skipped: int) -> Schema:
        by_name = {
            name: _tensor_schema(spec, skipped)
            for name, spec in signature.outputs.items()
        }
        if len(by_name) == 1:
            return next(iter(by_name.values()))
        return _object_schema(by_name, list(by_name))

    answers = [_body({}, OUTPUTS, schema(0))]
    if signature.batched:
        rows = {"type": "array", "items": schema(1)}
        answers.append(_body({}, PREDICTIONS, rows))
    return answers


def _body(key: Schema, name: str, schema: Schema) -> Schema:
    return _object_schema({**key, name: schema}, [*key, name])


_BYTES: Final[Schema] = {
    "type": "object",
    "properties": {BYTES_KEY: {"type": "string", "contentEncoding": "base64"}},
    "required": [BYTES_KEY],
    "additionalProperties": False,
}


def _element_schema(dtype: DType) -> Schema:
    """Returns the schema of one element."""
    name = dtype.name
    if name == "string":
        return {"anyOf": [{"type": "string"}, _BYTES]}
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


def _tensor_schema(spec: TensorSpec, skipped: int = 0) -> Schema:
    """Returns the schema of a tensor; ``skipped`` dimensions lie outside of it."""
    schema = _element_schema(spec.dtype)
    for size in reversed(spec.shape[skipped:]):
        schema = {"type": "array", "items": schema}
        if size != FREE:
            schema |= {"minItems": size, "maxItems": size}
    return schema


def _object_schema(properties: Mapping[str, Schema], required: list[str]) -> Schema:
    """Returns the schema of an object; other keys may stand beside these."""
    schema: Schema = {"type": "object", "properties": dict(properties)}
    return schema | {"required": required} if required else schema


def _tensors_schema(
    specs: Mapping[str, TensorSpec], skipped: int, optional: Mapping[str, Any]
) -> Schema:
    """Returns the schema of tensors by name, of which one may stand alone."""
    by_name = {name: _tensor_schema(spec, skipped) for name, spec in specs.items()}
    required = [name for name in by_name if name not in optional]
    named = _object_schema(by_name, required)
    if len(required) != 1:
        return named
    return {"anyOf": [by_name[required[0]], named]}


def _example_schema(signature: Signature) -> Schema:
    """Returns the schema of one tf.Example in JSON."""
    required = [
        name for name, each in signature.features.items() if each.default is None
    ]
    by_name = {name: _feature(each) for name, each in signature.features.items()}
    return _object_schema(by_name, required)


def _feature(feature: FeatureSpec) -> Schema:
    element: Schema = {"type": "integer"}  # which booleans are in an Example
    if feature.dtype is not BOOL:
        element = _element_schema(feature.dtype)
    values: Schema = {"type": "array", "items": element}
    if feature.kind is FeatureKind.FIXED:
        num = math.prod(feature.shape)
        values |= {"minItems": num, "maxItems": num}
        if num != 1:
            return values
    return {"anyOf": [element, values]}
