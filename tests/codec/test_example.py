"""tf.Example rows, turned into the inputs' tensors."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import pytest

from tests.codec.examples import Values, an_example, rows
from tfs.codec import wire
from tfs.codec.decode_options import DecodeOptions
from tfs.codec.example import tensors_of_examples
from tfs.codec.example_input import ExampleInput
from tfs.core import dtype as dtypes
from tfs.core.dtype import BFLOAT16, BOOL, FLOAT32, INT64, STRING, UINT8, DType
from tfs.core.errors import InvalidArgument, ResourceExhausted
from tfs.core.signature import FeatureKind, FeatureSpec, Method, Signature, TensorSpec
from tfs.core.tensor_view import TensorView
from tfs.proto.tensorflow.core.example import example_pb2

FLOATS = (FLOAT32, dtypes.FLOAT64, dtypes.FLOAT16, BFLOAT16)


def fixed(
    dtype: DType,
    shape: tuple[int, ...] = (),
    default: tuple[float, ...] | tuple[bytes, ...] | None = None,
) -> Signature:
    spec = FeatureSpec("x", FeatureKind.FIXED, dtype, shape, default)
    return Signature(
        Method.CLASSIFY,
        {"x": TensorSpec(dtype, (-1, *shape))},
        {"scores": TensorSpec(FLOAT32, (-1, 2))},
        features={"f": spec},
    )


def varlen(
    dtype: DType,
    pad: float | bytes | None = None,
    width: int = -1,
    mask: DType | None = None,
) -> Signature:
    inputs = {"x": TensorSpec(dtype, (-1, width), mask="m" if mask else None)}
    if mask:
        inputs["m"] = TensorSpec(mask, (-1, width))
    return Signature(
        Method.CLASSIFY,
        inputs,
        {"scores": TensorSpec(FLOAT32, (-1, 2))},
        features={"f": FeatureSpec("x", FeatureKind.VARLEN, dtype, pad=pad)},
    )


def test_fixed_features_become_rows() -> None:
    """[rows, *shape], one row per Example, floats bit by bit."""
    tensors = tensors_of_examples(
        rows({"f": [1.0, 2.0]}, {"f": [3.0, float("inf")], "other": [1]}),
        fixed(FLOAT32, (2,)),
    )
    data = struct.pack("<4f", 1, 2, 3, float("inf"))
    assert tensors == {"x": TensorView(FLOAT32, (2, 2), data)}


def test_a_scalar_feature_has_no_inner_dimension() -> None:
    """A feature of shape [] becomes an input of shape [rows]."""
    tensors = tensors_of_examples(rows({"f": [7]}, {"f": [8]}), fixed(INT64))
    assert tensors == {"x": TensorView(INT64, (2,), struct.pack("<2q", 7, 8))}


def test_strings_become_strings() -> None:
    """Values of a bytes_list become strings, whatever bytes they hold."""
    tensors = tensors_of_examples(
        rows({"f": [b"a", b"\xff"]}, {"f": [b"", b"d"]}), fixed(STRING, (2,))
    )
    assert tensors["x"] == TensorView(STRING, (2, 2), (b"a", b"\xff", b"", b"d"))


@pytest.mark.parametrize(
    ("dtype", "code"),
    [
        (dtypes.FLOAT64, "d"), (dtypes.FLOAT16, "e"), (dtypes.INT8, "b"),
        (dtypes.INT16, "h"), (dtypes.INT32, "i"), (INT64, "q"), (UINT8, "B"),
        (dtypes.UINT16, "H"), (dtypes.UINT32, "I"), (dtypes.UINT64, "Q"),
        (FLOAT32, "f"),
    ],
)  # fmt: skip
def test_integers_are_converted_to_the_inputs_dtype(dtype: DType, code: str) -> None:
    """int64_list is what an Example has for every integer, and floats take it too."""
    tensors = tensors_of_examples(rows({"f": [1, 2, 100]}), fixed(dtype, (3,)))
    assert tensors["x"].data == struct.pack(f"<3{code}", 1, 2, 100)


def test_booleans_and_bfloat16_are_converted() -> None:
    """Any non-zero is true; bfloat16 rounds to nearest, ties to even."""
    tensors = tensors_of_examples(rows({"f": [0, 1, 5]}), fixed(BOOL, (3,)))
    assert tensors["x"].data == b"\0\1\1"
    values = [1.0, 1.00390625, 1.01171875, float("nan")]
    tensors = tensors_of_examples(rows({"f": values}), fixed(BFLOAT16, (4,)))
    expected = struct.pack("<4H", 0x3F80, 0x3F80, 0x3F82, 0x7FC0)
    assert tensors["x"].data == expected


@pytest.mark.parametrize(
    ("dtype", "values"),
    [(UINT8, [256]), (UINT8, [-1]), (dtypes.FLOAT16, [1e9]), (FLOAT32, [1 << 62])],
)
def test_a_value_that_does_not_fit_names_its_example(
    dtype: DType, values: list[float]
) -> None:
    """Integers are never cut off; a float may only lose precision."""
    signature = fixed(dtype, (1,))
    if dtype is FLOAT32:
        assert len(tensors_of_examples(rows({"f": values}), signature)) == 1
        return
    with pytest.raises(InvalidArgument, match=r"example 1: .*'f'.* does not fit"):
        tensors_of_examples(rows({"f": [1]}, {"f": values}), signature)


def test_an_absent_feature_takes_the_default() -> None:
    """Absent, or present without a kind: the default's values."""
    signature = fixed(FLOAT32, (2,), default=(5.0, 6.0))
    tensors = tensors_of_examples(rows({}, {"f": [1.0, 2.0]}, {"f": None}), signature)
    assert tensors["x"].data == struct.pack("<6f", 5, 6, 1, 2, 5, 6)


def test_an_absent_feature_without_a_default_names_its_example() -> None:
    """A required feature that is absent is an error that says in which Example."""
    with pytest.raises(InvalidArgument, match=r"example 1: feature 'f' is required"):
        tensors_of_examples(rows({"f": [1.0]}, {}), fixed(FLOAT32, (1,)))


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0, 3.0], []])
def test_another_number_of_values_names_its_example(values: list[float]) -> None:
    """A fixed feature has exactly the product of its shape."""
    signature = fixed(FLOAT32, (2,), default=(0.0, 0.0))
    with pytest.raises(InvalidArgument, match=r"example 1: .* values, expected 2"):
        tensors_of_examples(rows({"f": [1.0, 2.0]}, {"f": values}), signature)


@pytest.mark.parametrize(
    ("dtype", "values"),
    [(FLOAT32, [b"x"]), (INT64, [1.0]), (STRING, [1]), (STRING, [1.0])],
)
def test_another_kind_of_list_names_its_example(dtype: DType, values: Values) -> None:
    """Floats are not cut to integers, and strings are not numbers."""
    with pytest.raises(InvalidArgument, match=r"example 0: data types don't match"):
        tensors_of_examples(rows({"f": values}), fixed(dtype, (1,)))


def test_a_dtype_that_no_example_holds_is_refused() -> None:
    """Complex and float8 inputs take Predict only."""
    with pytest.raises(InvalidArgument, match=r"no tf\.Example holds complex64"):
        tensors_of_examples(rows({"f": [1.0]}), fixed(dtypes.COMPLEX64, (1,)))


def test_variable_length_rows_are_padded_to_the_longest() -> None:
    """Shorter rows are padded with the pad value; an absent feature is empty."""
    tensors = tensors_of_examples(
        rows({"f": [1, 2, 3]}, {}, {"f": [4]}), varlen(INT64, pad=-1)
    )
    data = struct.pack("<9q", 1, 2, 3, -1, -1, -1, 4, -1, -1)
    assert tensors == {"x": TensorView(INT64, (3, 3), data)}


def test_variable_length_strings_are_padded() -> None:
    """Strings are padded with empty strings unless the feature says otherwise."""
    signature = varlen(STRING)
    tensors = tensors_of_examples(rows({"f": [b"a"]}, {"f": [b"b", b"c"]}), signature)
    assert tensors["x"] == TensorView(STRING, (2, 2), (b"a", b"", b"b", b"c"))
    tensors = tensors_of_examples(rows({"f": [b"a"]}, {}), varlen(STRING, pad=b"?"))
    assert tensors["x"].data == (b"a", b"?")


def test_a_fixed_width_input_pads_to_its_width() -> None:
    """An input of 4 columns gets 4, and refuses a row of 5."""
    tensors = tensors_of_examples(rows({"f": [1, 2]}), varlen(INT64, width=4))
    assert tensors["x"] == TensorView(INT64, (1, 4), struct.pack("<4q", 1, 2, 0, 0))
    with pytest.raises(InvalidArgument, match=r"example 1: .* at most 4 fit"):
        tensors_of_examples(rows({}, {"f": [0] * 5}), varlen(INT64, width=4))


def test_a_mask_says_where_values_are() -> None:
    """1 where a value was given, 0 where it was padded."""
    tensors = tensors_of_examples(
        rows({"f": [1]}, {"f": [1, 2]}), varlen(INT64, mask=BOOL)
    )
    assert tensors["m"] == TensorView(BOOL, (2, 2), b"\1\0\1\1")


def test_a_context_gives_what_an_example_lacks() -> None:
    """An example's own feature overrides the context's of that name, whole."""
    tensors = tensors_of_examples(
        rows({}, {"f": [9.0]}, context={"f": [5.0], "g": [1]}), fixed(FLOAT32, (1,))
    )
    assert tensors["x"].data == struct.pack("<2f", 5, 9)


def test_an_empty_feature_over_a_context_is_read_as_tensorflow_does() -> None:
    """An empty fixed feature counts as missing, a variable one overrides (TF 2.21)."""
    looked_up = rows({"f": None}, context={"f": [5.0]})
    tensors = tensors_of_examples(looked_up, fixed(FLOAT32, (1,)))
    assert tensors["x"].data == struct.pack("<f", 5)
    assert tensors_of_examples(looked_up, varlen(FLOAT32))["x"].shape == (1, 0)


def test_a_malformed_example_is_named_by_its_index() -> None:
    """The others are fine; the caller learns which one is not."""
    broken = ExampleInput((b"", b"", b"\xff"))
    with pytest.raises(InvalidArgument, match="example 2: could not be parsed"):
        tensors_of_examples(broken, fixed(FLOAT32, (1,), default=(0.0,)))
    broken = ExampleInput((b"",), b"\xff")
    with pytest.raises(InvalidArgument, match="the context: could not be parsed"):
        tensors_of_examples(broken, fixed(FLOAT32, (1,), default=(0.0,)))


def test_a_string_input_without_features_takes_the_examples_themselves() -> None:
    """Examples are passed serialized, with the context's bytes before each."""
    signature = Signature(
        Method.CLASSIFY,
        {"inputs": TensorSpec(STRING, (-1,))},
        {"scores": TensorSpec(FLOAT32, (-1, 2))},
    )
    given_rows = ExampleInput((b"a", b"not even an example"))
    assert tensors_of_examples(given_rows, signature) == {
        "inputs": TensorView(STRING, (2,), given_rows.examples)
    }
    together = rows({"f": [9.0]}, {}, context={"f": [5.0], "g": [1]})
    strings = tensors_of_examples(together, signature)["inputs"].data
    assert isinstance(strings, tuple)
    first, second = map(example_pb2.Example.FromString, strings)
    assert first == an_example({"f": [9.0], "g": [1]})
    assert second == an_example({"f": [5.0], "g": [1]})


def test_a_signature_that_takes_no_examples_says_so() -> None:
    """No features and no single string input: Predict is the way."""
    signature = Signature(
        Method.CLASSIFY,
        {"x": TensorSpec(FLOAT32, (-1, 2))},
        {"scores": TensorSpec(FLOAT32, (-1, 2))},
    )
    with pytest.raises(InvalidArgument, match="call Predict"):
        tensors_of_examples(rows({}), signature)


@pytest.mark.parametrize("kind", ["default", "context", "padding", "mask", "strings"])
def test_small_requests_cannot_become_huge_tensors(kind: str) -> None:
    """Whatever multiplies a few bytes by the number of examples has a budget."""
    options = DecodeOptions(max_tensor_bytes=100_000)
    empty: tuple[Mapping[str, Values], ...] = ({},) * 1_000
    context: Mapping[str, Values] = {"f": [0.0] * 1_000}
    if kind == "default":
        signature = fixed(FLOAT32, (1_000,), default=(0.0,) * 1_000)
        given_rows = rows(*empty)
    elif kind == "context":
        signature = fixed(FLOAT32, (1_000,))
        given_rows = rows(*empty, context=context)
    elif kind == "padding":
        signature = varlen(FLOAT32)
        given_rows = rows({"f": [0.0] * 1_000}, *empty)
    elif kind == "mask":
        signature = varlen(UINT8, mask=INT64)
        given_rows = rows(*({"f": [0] * 15},) * 1_000)
    else:
        signature = Signature(
            Method.CLASSIFY,
            {"inputs": TensorSpec(STRING, (-1,))},
            {"scores": TensorSpec(FLOAT32, (-1, 2))},
        )
        given_rows = rows(*empty, context=context)
    with pytest.raises(ResourceExhausted, match="bytes more than was sent"):
        tensors_of_examples(given_rows, signature, options)


def test_a_context_that_no_example_needs_is_not_read() -> None:
    """What every Example overrides may be of another kind."""
    other = an_example({"f": [b"text"]}).SerializeToString()
    full = an_example({"f": [1.0, 2.0]}).SerializeToString()
    tensors = tensors_of_examples(ExampleInput((full,), other), fixed(FLOAT32, (2,)))
    assert tensors["x"].shape == (1, 2)
    with pytest.raises(InvalidArgument, match="context: data types don't match"):
        tensors_of_examples(ExampleInput((full, b""), other), fixed(FLOAT32, (2,)))


def test_every_bit_of_a_float_is_kept() -> None:
    """Of NaNs, too, which have other bits once they were Python's floats."""
    bits = struct.pack("<2I", 0x7FA00001, 0x3F800000)
    sent = an_example({"f": [1.0, 2.0]}).SerializeToString()
    sent = sent.replace(struct.pack("<2f", 1.0, 2.0), bits)
    tensors = tensors_of_examples(ExampleInput((sent,)), fixed(FLOAT32, (2,)))
    assert bytes(tensors["x"].buffer) == bits


def test_examples_are_parsed_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsed, an empty one takes a hundred times what it takes on the wire."""
    num_alive = most_alive = 0

    class Parsed(dict[str, object]):
        def __init__(self) -> None:
            nonlocal num_alive, most_alive
            num_alive += 1
            most_alive = max(most_alive, num_alive)

        def __del__(self) -> None:
            nonlocal num_alive
            num_alive -= 1

    monkeypatch.setattr("tfs.codec.example._features", lambda *words: Parsed())
    tensors = tensors_of_examples(
        ExampleInput((b"",) * 100), fixed(FLOAT32, (2,), default=(1.0, 2.0))
    )
    assert tensors["x"].shape == (100, 2)
    assert most_alive <= 2


@pytest.mark.parametrize("depth", [1, 2])
def test_an_example_of_more_features_than_anybody_means_is_refused(depth: int) -> None:
    """Too many features are refused before they become objects, whatever their size."""
    parts = b"".join(
        wire.delimited(1, wire.delimited(1, b"%014d" % index) + b"\x12\x00")
        for index in range(70_000)
    )
    many = wire.delimited(1, parts) if depth == 2 else parts
    with pytest.raises(ResourceExhausted, match="example 0: more than 65536 features"):
        tensors_of_examples(ExampleInput((many,)), fixed(FLOAT32, (2,)))
    large = an_example({"f": [1.0, 2.0], "other": [bytes(2 << 20)]}).SerializeToString()
    tensors = tensors_of_examples(ExampleInput((large,)), fixed(FLOAT32, (2,)))
    assert tensors["x"].shape == (1, 2)
