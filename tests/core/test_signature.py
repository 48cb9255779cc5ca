"""Signatures: what they accept, what they say when they do not, and their JSON."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs.core.dtype import DTYPES, FLOAT32, INT64, STRING
from tfs.core.errors import InvalidArgument
from tfs.core.signature import (
    ExampleSlot,
    FeatureKind,
    FeatureSpec,
    Method,
    Signature,
    TensorSpec,
)
from tfs.core.tensor_view import TensorView


def zeros(*shape: int) -> TensorView:
    num = 1
    for size in shape:
        num *= size
    return TensorView(FLOAT32, shape, bytes(4 * num))


X = TensorSpec(FLOAT32, (-1, 3))
Y = TensorSpec(FLOAT32, (-1,))
SIGNATURE = Signature(Method.PREDICT, {"x": X}, {"y": Y})
TWO_INPUTS = Signature(
    Method.PREDICT,
    {"x": X, "t": TensorSpec(FLOAT32, (-1,))},
    {"y": Y},
    defaults={"t": zeros(1)},
)

FULL = Signature(
    method=Method.CLASSIFY,
    inputs={
        "x": TensorSpec(FLOAT32, (-1, -1), pad=0.0, mask="m"),
        "m": TensorSpec(DTYPES["bool"], (-1, -1)),
        "s": TensorSpec(STRING, (-1,)),
    },
    outputs={
        "scores": TensorSpec(FLOAT32, (-1, 3)),
        "label": TensorSpec(STRING, (-1,)),
    },
    defaults={"s": TensorView(STRING, (1,), (b"\xff",))},
    labels=("a", "b", "c"),
    features={
        "pixels": FeatureSpec("x", FeatureKind.FIXED, FLOAT32, (2,), (1.0, 2.0)),
        "ids": FeatureSpec("x", FeatureKind.VARLEN, FLOAT32, pad=0.0),
        "text": FeatureSpec("s", FeatureKind.FIXED, STRING, (), (b"none",)),
    },
    examples={"x": ExampleSlot((4, 2), 64), "s": ExampleSlot((1,), 0, (b"a\x00",))},
)


# -- checking requests -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "num_rows"),
    [({"x": zeros(1, 3)}, 1), ({"x": zeros(5, 3)}, 5), ({"x": zeros(0, 3)}, 0)],
)
def test_fitting_inputs_give_their_rows(
    inputs: Mapping[str, TensorView], num_rows: int
) -> None:
    """The number of rows is dimension 0 of the inputs."""
    assert SIGNATURE.check_inputs(inputs) == num_rows


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, r"0!=1.*Missing but required: \{x\}"),
        ({"x": zeros(1, 3), "z": zeros(1)}, r"Sent extra: \{z\}"),
        (
            {"z": zeros(1, 3)},
            r"Signature input alias: x\(feed name: x\) not found in request and no "
            r"default value provided. Inputs expected to be in the request \{z\}",
        ),
        (
            {"y": zeros(1, 3), "z": zeros(1)},
            r"2!=1 len\(\{y,z\}\) != len\(\{x\}\). "
            r"Sent extra: \{y,z\}. Missing but required: \{x\}",
        ),
        (
            {"x": TensorView(INT64, (1, 3), bytes(24))},
            "'x' expected to be float but int64 is provided",
        ),
        (
            {"x": TensorView(STRING, (1, 3), (b"",) * 3)},
            "'x' expected to be float but string is provided",
        ),
        ({"x": zeros(3)}, r"'x' must have shape \[-1, 3\].*got \[3\]"),
        ({"x": zeros(1, 4)}, r"'x' must have shape \[-1, 3\].*got \[1, 4\]"),
        ({"x": zeros(1, 3, 1)}, r"got \[1, 3, 1\]"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_by_name(
    inputs: Mapping[str, TensorView], message: str
) -> None:
    """The caller learns which input, what was sent and what is expected."""
    with pytest.raises(InvalidArgument, match=message):
        SIGNATURE.check_inputs(inputs)


def test_inputs_have_equally_many_rows() -> None:
    """A batch has one size."""
    assert TWO_INPUTS.check_inputs({"x": zeros(2, 3), "t": zeros(2)}) == 2
    with pytest.raises(InvalidArgument, match=r"0th-dimension.*'t' has 3, others 2"):
        TWO_INPUTS.check_inputs({"x": zeros(2, 3), "t": zeros(3)})


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, r"0!=2 len\(\{\}\) != len\(\{t,x\}\).*Missing but required: \{x\}"),
        (
            {"x": zeros(1, 3), "z": zeros(1)},
            "Inputs contains invalid name. Used request inputs: x, request input: x,z",
        ),
        (
            {"t": zeros(1), "z": zeros(1)},
            r"Signature input alias: x.*in the request \{t,z\}, or default input "
            "alias set: t",
        ),
    ],
)
def test_a_default_that_was_put_in_is_not_said_to_be_sent(
    inputs: Mapping[str, TensorView], message: str
) -> None:
    """The caller reads of what it sent."""
    with pytest.raises(InvalidArgument, match=message):
        TWO_INPUTS.check_inputs(TWO_INPUTS.with_defaults(inputs))


def test_an_input_with_a_default_may_be_left_out() -> None:
    """The default fits any number of rows; what a caller sends does not."""
    assert TWO_INPUTS.check_inputs({"x": zeros(2, 3)}) == 2
    filled = TWO_INPUTS.with_defaults({"x": zeros(2, 3)})
    assert set(filled) == {"x", "t"}
    assert TWO_INPUTS.check_inputs(filled) == 2
    given_ = {"x": zeros(2, 3), "t": zeros(2)}
    assert TWO_INPUTS.with_defaults(given_) is given_


def test_an_unbatched_signature_has_one_row() -> None:
    """Dimension 0 means nothing, scalars are fine."""
    signature = Signature(
        Method.PREDICT,
        {"x": TensorSpec(FLOAT32, ()), "y": TensorSpec(FLOAT32, (7,))},
        {"z": TensorSpec(FLOAT32, ())},
        batched=False,
    )
    assert signature.check_inputs({"x": zeros(), "y": zeros(7)}) == 1


def test_an_output_filter_names_outputs_once() -> None:
    """Wanted outputs exist and are not asked for twice."""
    FULL.check_output_filter([])
    FULL.check_output_filter(["label", "scores"])
    with pytest.raises(InvalidArgument, match=r"nope.*\{label,scores\}"):
        FULL.check_output_filter(["nope"])
    with pytest.raises(InvalidArgument, match=r"duplicate.*label"):
        FULL.check_output_filter(["label", "scores", "label"])


def test_methods_have_the_names_clients_know() -> None:
    """SignatureDef's method names are TensorFlow Serving's."""
    assert [method.method_name for method in Method] == [
        "tensorflow/serving/predict",
        "tensorflow/serving/classify",
        "tensorflow/serving/regress",
    ]


# -- the JSON form -----------------------------------------------------------------------


@pytest.mark.parametrize("signature", [SIGNATURE, TWO_INPUTS, FULL])
def test_a_signature_reads_back_equal(signature: Signature) -> None:
    """The manifest's form loses nothing, not even through its text."""
    text = json.dumps(signature.to_json())
    assert Signature.from_json(json.loads(text), "here") == signature


def test_the_minimal_form_is_enough() -> None:
    """Method, inputs and outputs are all that a hand-written signature needs."""
    form = {
        "method": "predict",
        "inputs": {"x": {"dtype": "float32", "shape": [-1, 3]}},
        "outputs": {"y": {"dtype": "float32", "shape": [-1]}},
    }
    assert Signature.from_json(form, "here") == SIGNATURE
    assert SIGNATURE.to_json() == form


def test_a_scalar_default_fills_a_feature() -> None:
    """One number stands for all values of a row."""
    form = FULL.to_json()
    form["features"] = {
        "pixels": {"input": "x", "kind": "fixed", "dtype": "float32", "shape": [3],
                   "default": 0}
    }  # fmt: skip
    features = Signature.from_json(form, "here").features
    assert features["pixels"].default == (0, 0, 0)


def broken(**changes: object) -> dict[str, Any]:
    """Returns FULL's form with parts replaced; None removes one."""
    form = copy.deepcopy(FULL.to_json())
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
    (broken(inputs__x__pad="0"), "pad must be a number"),
    (broken(labels="abc"), "labels must be"),
    (broken(labels=[1]), "labels must be"),
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
]


@pytest.mark.parametrize(("form", "message"), BROKEN)
def test_a_bad_form_is_refused_with_its_place(form: object, message: str) -> None:
    """A hand-written signature with a mistake says where and what."""
    with pytest.raises(InvalidArgument, match=message) as caught:
        Signature.from_json(form, "/m/1, signature 'a'")
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
    form: Any = copy.deepcopy(FULL.to_json())
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
    with contextlib.suppress(InvalidArgument):
        Signature.from_json(form, "here")
