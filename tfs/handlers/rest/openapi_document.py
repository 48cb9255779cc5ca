"""Describes the REST API of models as an OpenAPI document. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

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


@dataclass(frozen=True, slots=True)
class DescribedModel:
    """A version that answers requests. Immutable.

    Attributes:
        name: The model.
        version: Which version was looked at.
        signatures: By key.
        examples: Inputs that it takes, by signature.
        path: Where it is in the REST API, as it was asked for.

    """

    name: str
    version: int
    signatures: Mapping[str, Signature]
    examples: Mapping[str, Tensors]
    path: str


def openapi_document(
    models: Iterable[DescribedModel], release: str, more: str = ""
) -> Sequence[bytes]:
    """Returns the document for some models, in a piece for each, which stops nobody long.

    Args:
        models: The models; taken one by one.
        release: The server's.
        more: Where others are described.

    """
    description = (
        "TensorFlow Serving's REST API of the models on this server. "
        f"NaN, Infinity and -Infinity are numbers here.{more}"
    )
    error = _object({"error": {"type": "string"}})
    frame = {
        "openapi": "3.1.0",
        "info": {"title": "TFS", "version": release, "description": description},
        "components": {
            "responses": {"Error": _answer("What is wrong, and what to do.", error)}
        },
    }
    parts = [dump(frame)[:-1] + b',"paths":{']
    for model in models:
        comma = b"," if len(parts) > 1 else b""
        parts.append(comma + dump(_paths_of(model))[1:-1])
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
    optional = signature.defaults
    inputs = {name: view for name, view in inputs.items() if name not in optional}
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
        features = signature.features
        if any(each.input not in inputs for each in features.values()):
            return None
        example = {
            name: _feature_values(name, inputs[each.input])
            for name, each in features.items()
        }
        return body | {"examples": [example]}
    if not signature.batched:
        return body | {INPUTS: values}
    if len(values) == 1:
        (rows,) = values.values()
    else:
        columns = zip(*values.values(), strict=False)
        rows = [dict(zip(values, row, strict=True)) for row in columns]
    return body | {INSTANCES: rows}


def _plain(name: str, view: Any) -> Any:
    if view.dtype is STRING:
        try:
            b" ".join(view.strings).decode()
        except UnicodeDecodeError:
            name = f"{name}_bytes"
    return json_value(name, view)


def _feature_values(name: str, view: Any) -> Any:
    row = view.rows(0, 1) if view.shape else view
    if view.dtype is STRING:
        return _plain(name, type(view)(STRING, (len(row.strings),), row.strings))
    values = array_of(row).ravel()
    return values.astype(int) if values.dtype.kind == "b" else values


def _paths_of(model: DescribedModel) -> Mapping[str, Any]:
    by_method: dict[str, dict[str, Signature]] = {}
    for name, signature in model.signatures.items():
        for method in methods_of(signature):
            by_method.setdefault(method, {})[name] = signature
    paths = {
        f"{model.path}:{method}": {"post": _operation(model, method, signatures)}
        for method, signatures in by_method.items()
    }
    for path, summary in (
        ("", "Versions and their states"),
        ("/metadata", "Signatures"),
    ):
        answer = _answer("In protobuf's JSON.", {})
        paths[f"{model.path}{path}"] = {"get": _described(model, summary, answer)}
    return paths


def _operation(
    model: DescribedModel, method: str, signatures: Mapping[str, Signature]
) -> Schema:
    bodies: list[Schema] = []
    answers: list[Schema] = []
    examples: dict[str, Schema] = {}
    for name, signature in signatures.items():
        if method == PREDICT:
            asked, answered = _columns_and_rows(signature)
        else:
            asked = {"examples": _rows(_example(signature))}
            answered = {"results": {"type": "array"}}
        key = {} if name == DEFAULT_SIGNATURE else {SIGNATURE_NAME: {"const": name}}
        bodies += [_object(key | {form: each}) for form, each in asked.items()]
        answers += [_object({form: each}) for form, each in answered.items()]
        value = request_example(method, name, signature, model.examples.get(name, {}))
        if value is not None:
            examples[name] = {"value": value}
    content: Schema = {"schema": {"anyOf": bodies}}
    if examples:
        content["examples"] = examples
    summary = f"{method.capitalize()} with {model.name} {model.version}"
    answer = _answer("The answer.", {"anyOf": answers})
    body = {"required": True, "content": {_JSON: content}}
    return _described(model, summary, answer) | {"requestBody": body}


def _described(model: DescribedModel, summary: str, answer: Schema) -> Schema:
    responses = {"200": answer, "default": {"$ref": "#/components/responses/Error"}}
    return {"tags": [model.name], "summary": summary, "responses": responses}


def _answer(description: str, schema: Schema) -> Schema:
    return {"description": description, "content": {_JSON: {"schema": schema}}}


def _columns_and_rows(signature: Signature) -> tuple[Schema, Schema]:
    """Returns what Predict takes and answers: schemas by key."""
    inputs, outputs, optional = signature.inputs, signature.outputs, signature.defaults
    asked: Schema = {INPUTS: {"anyOf": _tensors(inputs, 0, optional)}}
    answered: Schema = {OUTPUTS: _tensors(outputs, 0)[0]}
    if signature.batched:
        asked[INSTANCES] = _rows({"anyOf": _tensors(inputs, 1, optional)})
        answered[PREDICTIONS] = _rows(_tensors(outputs, 1)[0])
    return asked, answered


def _tensors(
    specs: Mapping[str, TensorSpec], skipped: int, optional: Collection[str] = ()
) -> list[Schema]:
    """Returns the schema of tensors by name; before it, that of one that may stand alone.

    Args:
        specs: The tensors.
        skipped: How many of their dimensions lie outside.
        optional: Which may be left out.

    """
    by_name = {}
    for name, spec in specs.items():
        schema = _element(spec.dtype)
        for size in reversed(spec.shape[skipped:]):
            schema = {"type": "array", "items": schema}
            if size != FREE:
                schema |= {"minItems": size, "maxItems": size}
        by_name[name] = schema
    required = [name for name in by_name if name not in optional]
    alone = [by_name[name] for name in required if len(required) == 1]
    return [*alone, _object(by_name, required)]


def _rows(row: Schema) -> Schema:
    return {"type": "array", "items": row, "minItems": 1}


def _object(properties: Schema, required: Sequence[str] | None = None) -> Schema:
    """Returns the schema of an object; other keys may stand beside these."""
    required = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": required}


def _element(dtype: DType) -> Schema:
    """Returns the schema of one element."""
    name = dtype.name
    if name == "string":
        coded = {"type": "string", "contentEncoding": "base64"}
        alone = {"additionalProperties": False}
        return {"anyOf": [{"type": "string"}, _object({BYTES_KEY: coded}) | alone]}
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


def _example(signature: Signature) -> Schema:
    """Returns the schema of one tf.Example in JSON."""
    features = signature.features
    required = [name for name, each in features.items() if each.default is None]
    return _object({name: _feature(each) for name, each in features.items()}, required)


def _feature(feature: FeatureSpec) -> Schema:
    element: Schema = {"type": "integer"}  # which booleans are in an Example
    if feature.dtype is not BOOL:
        element = _element(feature.dtype)
    values: Schema = {"type": "array", "items": element}
    if feature.kind is FeatureKind.FIXED:
        num = math.prod(feature.shape)
        values |= {"minItems": num, "maxItems": num}
        if num != 1:
            return values
    return {"anyOf": [element, values]}
