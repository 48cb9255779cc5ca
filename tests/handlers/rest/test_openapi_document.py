"""OpenAPI documents of models of every kind."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate

from tests.handlers.served import CLASSIFY, PREDICT, REGRESS
from tests.tensors import floats, strings
from tfs.core.dtype import BOOL, COMPLEX64, FLOAT32, INT8, STRING, UINT64
from tfs.core.servable import Tensors
from tfs.core.signature import Method, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.handlers.rest.openapi_document import DescribedModel, openapi_document
from tfs.handlers.rest.paths import path_of

X = floats((1, 2), 0.1, 2)
MIXED = Signature(
    Method.PREDICT,
    {
        "a": TensorSpec(INT8, (-1, -1)),
        "b": TensorSpec(STRING, (-1,)),
        "c": TensorSpec(COMPLEX64, (-1,)),
        "d": TensorSpec(UINT64, (-1,)),
    },
    {"y": TensorSpec(BOOL, (-1,))},
)
MIXED_INPUTS: Tensors = {
    "a": TensorView(INT8, (1, 2), b"\x01\xff"),
    "b": strings((1,), b"\xff"),
    "c": TensorView(COMPLEX64, (1,), floats((2,), 1, 2).data),
    "d": TensorView(UINT64, (1,), b"\xff" * 8),
}
WHOLE = Signature(
    Method.PREDICT,
    {"x": TensorSpec(FLOAT32, (2,))},
    {"y": TensorSpec(FLOAT32, ())},
    batched=False,
)
MODEL = DescribedModel(
    "a model/with signs",
    3,
    {
        "serving_default": PREDICT,
        "classify": CLASSIFY,
        "regress": REGRESS,
        "mixed": MIXED,
        "whole": WHOLE,
    },
    {
        "serving_default": {"x": X, **PREDICT.defaults},
        "classify": {"x": X},
        "regress": {"x": X},
        "mixed": MIXED_INPUTS,
        "whole": {"x": floats((2,), 1, float("inf"))},
    },
    path_of("a model/with signs"),
)


def document(*models: DescribedModel) -> Any:
    return json.loads(b"".join(openapi_document(models, "1.0")))


def test_the_document_is_openapi() -> None:
    """Its own validator takes it: of no model, and of one with signatures of all kinds."""
    validate(document())
    found = document(MODEL)
    validate(found)
    base = "/v1/models/a%20model%2Fwith%20signs"
    verbs = {":predict", ":classify", ":regress", "", "/metadata"}
    assert found["paths"].keys() == {base + verb for verb in verbs}


@pytest.mark.parametrize("method", ["predict", "classify", "regress"])
def test_its_examples_are_requests_by_its_schemas(method: str) -> None:
    """Each signature has one that names it, unless it is the default."""
    path = f"/v1/models/a%20model%2Fwith%20signs:{method}"
    body = document(MODEL)["paths"][path]["post"]["requestBody"]
    content = body["content"]["application/json"]
    examples = content["examples"]
    expected = set(MODEL.signatures) if method == "predict" else {method}
    assert examples.keys() == expected
    for name, example in examples.items():
        OAS31Validator(content["schema"]).validate(example["value"])
        given = example["value"].get("signature_name", "serving_default")
        assert given == name
    assert not OAS31Validator(content["schema"]).is_valid({"instances": []})


def test_an_example_is_as_long_as_its_numbers_are() -> None:
    """A float32 of 0.1 is 0.1 here; bytes are base64; what has a default is left out."""
    examples = document(MODEL)["paths"]["/v1/models/a%20model%2Fwith%20signs:predict"][
        "post"
    ]["requestBody"]["content"]["application/json"]["examples"]
    assert examples["serving_default"]["value"] == {"instances": [[0.1, 2.0]]}
    (row,) = examples["mixed"]["value"]["instances"]
    assert row == {
        "a": [1, -1],
        "b": {"b64": "/w=="},
        "c": [1.0, 2.0],
        "d": (1 << 64) - 1,
    }


def test_a_long_example_is_left_out() -> None:
    """A page is no place for an image; the schema says what it is."""
    long = Signature(
        Method.PREDICT,
        {"x": TensorSpec(FLOAT32, (-1, 5000))},
        {"y": TensorSpec(FLOAT32, (-1,))},
    )
    inputs = {"x": TensorView(FLOAT32, (1, 5000), bytes(20_000))}
    model = DescribedModel(
        "m", 1, {"serving_default": long}, {"serving_default": inputs}, path_of("m")
    )
    found = document(model)["paths"]["/v1/models/m:predict"]["post"]["requestBody"]
    assert "examples" not in found["content"]["application/json"]
