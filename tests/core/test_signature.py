"""Signatures: what they accept, and what they say when they do not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.core.signatures import FULL, SIGNATURE, TWO_INPUTS, X, zeros
from tfs.core.dtype import FLOAT32, INT64, STRING
from tfs.core.errors import InvalidArgument
from tfs.core.signature import (
    Method,
    Signature,
    TensorSpec,
)
from tfs.core.tensor_view import TensorView

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


def test_answers_are_as_long_at_least_as_outputs_of_fixed_size() -> None:
    """Those of free sizes and strings do not count; without a batch all sizes do."""
    outputs = {
        "scores": TensorSpec(FLOAT32, (-1, 3)),
        "boxes": TensorSpec(INT64, (-1, -1, 4)),
        "label": TensorSpec(STRING, (-1,)),
    }
    assert Signature(Method.PREDICT, {"x": X}, outputs).least_answer_bytes == 12
    whole = {"map": TensorSpec(FLOAT32, (5, 3))}
    unbatched = Signature(Method.PREDICT, {"x": X}, whole, batched=False)
    assert unbatched.least_answer_bytes == 60
