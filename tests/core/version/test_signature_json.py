"""tfs.core.version.signature_json."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.signatures import FULL, SIGNATURE, TWO_INPUTS
from tfs.core.errors import InvalidArgument
from tfs.core.signature import Signature
from tfs.core.version.manifest import signature_from_json, signature_to_json


@pytest.mark.parametrize("signature", [SIGNATURE, TWO_INPUTS, FULL])
def test_a_signature_reads_back_equal(signature: Signature) -> None:
    """The manifest's form loses nothing, not even through its text."""
    text = json.dumps(signature_to_json(signature))
    assert signature_from_json(json.loads(text), "here") == signature


def test_the_minimal_form_is_enough() -> None:
    """Method, inputs and outputs are all that a hand-written signature needs."""
    form = {
        "method": "predict",
        "inputs": {"x": {"dtype": "float32", "shape": [-1, 3]}},
        "outputs": {"y": {"dtype": "float32", "shape": [-1]}},
    }
    assert signature_from_json(form, "here") == SIGNATURE
    assert signature_to_json(SIGNATURE) == form


def test_a_scalar_default_fills_a_feature() -> None:
    """One number stands for all values of a row."""
    form = signature_to_json(FULL)
    form["features"] = {
        "pixels": {"input": "x", "kind": "fixed", "dtype": "float32", "shape": [3],
                   "default": 0}
    }  # fmt: skip
    features = signature_from_json(form, "here").features
    assert features["pixels"].default == (0, 0, 0)


def test_an_input_with_a_default_may_have_an_example_of_one_row() -> None:
    """It stands for every row, as when a caller leaves it out."""
    form = broken(example__s={"shape": [1], "value": ["YQ=="]})
    assert signature_from_json(form, "here").examples["s"].shape == (1,)


def broken(**changes: object) -> dict[str, Any]:
    """Returns FULL's form with parts replaced; None removes one."""
    form = copy.deepcopy(signature_to_json(FULL))
    for path, value in changes.items():
        *folders, last = path.split("__")
        part: Any = form
        for folder in folders:
            part = part[folder]
        if value is None:
            del part[last]
        else:
            part[last] = value
    return form


BROKEN: list[tuple[object, str]] = [
    ([], "expected an object"),
    (None, "expected an object"),
    (broken(method=None), "missing 'method'"),
    (broken(method="guess"), "guess"),
    (broken(inputs=None), "missing 'inputs'"),
    (broken(inputs=[]), "expected an object"),
    (broken(outputs={}), "at least one output"),
    (broken(extra=1), "unknown keys.*extra"),
    (broken(batched="no"), "batched must be"),
    (broken(inputs__x={"shape": [1]}), "missing 'dtype'"),
    (broken(inputs__x={"dtype": "float32"}), "missing 'shape'"),
    (broken(inputs__x={"dtype": "float", "shape": [1]}), "unknown dtype 'float'"),
    (broken(inputs__x={"dtype": ["float32"], "shape": [1]}), "unknown dtype"),
    (broken(inputs__x={"dtype": "float32", "shape": 3}), "shape must be a list"),
    (broken(inputs__x={"dtype": "float32", "shape": [-2]}), "bad dimension -2"),
    (broken(inputs__x={"dtype": "float32", "shape": [1.5]}), "bad dimension 1.5"),
    (broken(inputs__x={"dtype": "float32", "shape": [True]}), "bad dimension True"),
    (broken(inputs__x={"dtype": "float32", "shape": []}), "no batch dimension"),
    (broken(inputs__x__mask="nobody"), "unknown mask 'nobody'"),
    (broken(inputs__x__mask=3), "mask must name"),
    (broken(inputs__x__length_of="nobody"), "'x' has the length of no input"),
    (broken(inputs__x__length_of=3), "length_of must name"),
    (broken(inputs__x__pad="0"), "pad must be a number"),
    (broken(labels="abc"), "labels must be"),
    (broken(labels=[1]), "labels must be"),
    (broken(labels=["a", "b"]), "2 labels for 3 scores"),
    (broken(defaults={"q": {"dtype": "float32", "shape": [0], "value": ""}}), "'q'"),
    (broken(defaults={"s": {"dtype": "int8", "shape": [0], "value": ""}}), "'s'"),
    (
        broken(defaults={"s": {"dtype": "string", "shape": [1], "value": "YQ=="}}),
        "list",
    ),
    (broken(defaults={"s": {"dtype": "string", "shape": [1], "value": ["?"]}}), "."),
    (broken(defaults={"s": {"dtype": "string", "shape": [2], "value": []}}), "fill"),
    (
        broken(defaults={"s": {"dtype": "string", "shape": [1, 1], "value": ["YQ=="]}}),
        r"default 's' has shape \[1, 1\], its input \[-1\]",
    ),
    (broken(features__pixels__input="q"), "unknown input"),
    (broken(features__ids__dtype="int64"), "'ids' is int64, its input 'x' float32"),
    (broken(features__pixels__shape=[2, 2]), r"'pixels' has rows of shape \[2, 2\]"),
    (broken(features__pixels__input=1), "must be a name"),
    (broken(features__pixels__kind="some"), "some"),
    (broken(features__pixels__shape=[-1]), "bad dimension"),
    (broken(features__pixels__default="a"), "must be numbers"),
    (broken(features__text__default=[1]), "must be strings"),
    (broken(features__pixels__shape=[1 << 60], features__pixels__default=0), "large"),
    (broken(example={"x": {"shape": [1], "offset": -1}}), "bad offset"),
    (broken(example={"x": {"shape": [-1]}}), "bad dimension"),
    (broken(example={"x": {}}), "missing 'shape'"),
    (broken(inputs__x={"dtype": "float32", "shape": [-1], "padd": 0}), "'padd'"),
    (broken(outputs__label={"dtype": "string", "shape": [-1], "axis": 0}), "'axis'"),
    (broken(features__pixels__defualt=[1]), "unknown keys.*'defualt'"),
    (broken(features__pixels__default=[1]), "default of 1 values, its shape takes 2"),
    (broken(defaults__s__shpae=[1]), "unknown keys.*'shpae'"),
    (broken(example__x__ofset=0), "unknown keys.*'ofset'"),
    (broken(example__q={"shape": [4, 2]}), "example 'q' fits no input"),
    (
        broken(example__x={"shape": [4]}),
        r"example 'x' has shape \[4\], its input \[-1, -1\]",
    ),
    (broken(example__x={"shape": [2, 1], "value": ["YQ=="] * 2}), "at an offset"),
    (broken(example__s={"shape": [2]}), "example 's' must be given as its value"),
    (broken(example__s={"shape": [2], "value": ["YQ=="]}), "1 strings.* takes 2"),
    (broken(example__m={"shape": [3, 2]}), "number of rows"),
]


@pytest.mark.parametrize(("form", "message"), BROKEN)
def test_a_bad_form_is_refused_with_its_place(form: object, message: str) -> None:
    """A hand-written signature with a mistake says where and what."""
    with pytest.raises(InvalidArgument, match=message) as caught:
        signature_from_json(form, "/m/1, signature 'a'")
    assert "/m/1, signature 'a'" in caught.value.message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.data())
def test_no_form_makes_the_reader_fail_in_another_way(data: st.DataObject) -> None:
    """Whatever stands in a manifest, reading ends in a signature or in InvalidArgument."""
    form: Any = copy.deepcopy(signature_to_json(FULL))
    path = data.draw(
        st.sampled_from(
            [("method",), ("inputs",), ("inputs", "x"), ("inputs", "x", "shape"),
             ("outputs",), ("defaults",), ("defaults", "s"), ("defaults", "s", "value"),
             ("features",), ("features", "pixels"), ("features", "pixels", "default"),
             ("labels",), ("example",), ("example", "x"), ("example", "s", "value")]
        )
    )  # fmt: skip
    part = form
    for folder in path[:-1]:
        part = part[folder]
    part[path[-1]] = data.draw(JSON)
    try:
        found = signature_from_json(form, "here")
    except InvalidArgument:
        return
    assert signature_from_json(signature_to_json(found), "here") == found
