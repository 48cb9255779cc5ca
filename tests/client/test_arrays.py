"""tfs.client.arrays."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

from tfs.client.arrays import (
    NARROW_FLOATS,
    Typed,
    decode,
    encode,
    fill_tensor,
    read_tensor,
)
from tfs.client.results import Array
from tfs.core.errors import InvalidArgument
from tfs.proto.tensorflow.core.framework import tensor_pb2, types_pb2

KINDS = [
    "f4",
    "f8",
    "f2",
    "i1",
    "i2",
    "i4",
    "i8",
    "u1",
    "u2",
    "u4",
    "u8",
    "?",
    "c8",
    "c16",
]


def sent(value: object) -> Array:
    tensor = tensor_pb2.TensorProto()
    fill_tensor(tensor, value, "x")
    return read_tensor(
        tensor_pb2.TensorProto.FromString(tensor.SerializeToString()), "x"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_an_array_survives_the_wire(kind: str) -> None:
    """What is sent is what is read, dtype and shape included."""
    array = np.arange(6).reshape(2, 3).astype(kind)
    back = sent(array)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_big_endian_and_strided_arrays_are_sent_right() -> None:
    """The wire is little-endian and row-major whatever the array is."""
    array = np.arange(12, dtype=">f4").reshape(3, 4).T
    np.testing.assert_array_equal(sent(array), array)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [([1.5, 2.5], np.float32), ([1, 2], np.int64), (True, np.bool_), (3, np.int64)],
)
def test_python_values_get_the_usual_dtypes(value: object, dtype: type) -> None:
    """Python floats are float32 and ints int64."""
    assert sent(value).dtype == dtype


def test_large_integers_are_never_rounded() -> None:
    """numpy makes floats of a list in which only some need uint64."""
    value = [[1, 2**64 - 1], [2**63, 0]]
    assert sent(value).dtype == np.uint64
    assert sent(value).tolist() == value
    assert sent(Typed(value, "uint64")).tolist() == value
    for wrong in ([-1, 2**64 - 1], [1, 2**64]):
        with pytest.raises(InvalidArgument, match="'x'"):
            sent(wrong)
    assert sent([1.0, 2.0**70]).dtype == np.float32
    assert sent([1, float("inf")]).dtype == np.float32


def test_strings_and_bytes_are_one_kind() -> None:
    """Text is sent as UTF-8 and read as bytes."""
    assert sent(["ä", b"\xff"]).tolist() == ["ä".encode(), b"\xff"]


def test_zeros_at_the_end_of_strings_are_kept() -> None:
    """What numpy's own strings would drop is sent: serialized messages, pixels."""
    for value in (["a\0", "bc"], [b"\x01\0\0"], b"\0", "\0\0", [[b"\0"], [b"x\0"]]):
        nested = np.asarray(value, dtype=object)
        wanted = [
            each.encode() if isinstance(each, str) else each for each in nested.flat
        ]
        back = sent(value)
        assert back.shape == nested.shape
        assert list(back.flat) == wanted


def test_numpys_own_strings_are_whole_or_refused() -> None:
    """Zeros that numpy does not show are never left out: lists and objects have them."""
    for kept in (np.bytes_(b"ab\0"), [np.bytes_(b"ab\0"), b"c"]):
        assert sent(kept).ravel()[0] == b"ab\0"
    for array in (
        np.array([b"ab\0"]),
        np.array([b"ab\0", b"abcd"]),
        np.array(b"\0"),
        np.array([[b"x", b"y\0"]]),
        np.array(["ab\0"]),
        [np.array([b"ab\0"])],
    ):
        with pytest.raises(
            InvalidArgument, match="pass a list, or an array of dtype obj"
        ):
            sent(array)
    whole = np.array([b"ab", b"cd"]), np.array(["a", "bcd"]), np.array([["", ""]])
    for each in whole:
        assert list(sent(each).flat) == [
            item if isinstance(item, bytes) else item.encode()
            for item in each.ravel().tolist()
        ]


def test_strings_as_raw_content_are_read() -> None:
    """TensorFlow Serving sends them so where it sends all tensors so."""
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_STRING)
    tensor.tensor_shape.dim.add(size=3)
    tensor.tensor_content = b"\x01\x00\x02abb"
    assert read_tensor(tensor, "x").tolist() == [b"a", b"", b"bb"]
    tensor.tensor_content = b"\x01\x00\x03abb"
    with pytest.raises(InvalidArgument, match="output 'x': tensor_content"):
        read_tensor(tensor, "x")


def test_tensors_of_other_libraries_keep_their_dtype() -> None:
    """What numpy can see as an array is one, and nothing converts arrays."""
    assert sent(torch.ones(2, dtype=torch.float64)).dtype == np.float64
    assert sent(np.float64(1)).dtype == np.float64
    for unseen in (torch.ones(1, dtype=torch.bfloat16), torch.ones(1).requires_grad_()):
        with pytest.raises(InvalidArgument, match="'x'"):
            sent(unseen)


def test_masked_values_are_not_sent_as_what_lies_under_the_mask() -> None:
    """Nobody meant these; an array without any is sent like others."""
    array = np.ma.masked_array([1.0, 2.0], mask=[False, True])
    with pytest.raises(InvalidArgument, match="'x' has masked values"):
        sent(array)
    for rows in ([array], (np.ones(2), array), [1.0, np.ma.masked]):
        with pytest.raises(InvalidArgument, match="'x' has masked values"):
            sent(rows)
    assert sent([array[:1]]).tolist() == [[1]]
    assert sent(array.filled(0)).tolist() == [1, 0]
    assert sent(array[:1]).tolist() == [1]


@pytest.mark.parametrize("value", [[[1, 2], [3]], {"a": 1}, object(), [1, "a"]])
def test_what_cannot_be_sent_is_refused_by_name(value: object) -> None:
    """A value without a wire form is refused before anything is sent."""
    with pytest.raises(InvalidArgument, match="'x'"):
        sent(value)


@pytest.mark.parametrize(
    ("value", "culprit"),
    [
        ([1, None], "holds None"),
        (["a", 2], "holds 2;"),
        ([1 << 70, 1], "holds 1180591"),
        (
            np.array([1, 2.5], dtype=object),
            "Python objects, such as 1; give it a dtype",
        ),
        ([Decimal("1.5")], r"such as Decimal\('1.5'\); give it a dtype"),
        ([[1, 2], [3]], "its lists differ in length; fill them up"),
    ],
)
def test_value_that_cannot_be_sent_is_shown(value: object, culprit: str) -> None:
    """The error shows the value, which may be one in a list of a thousand."""
    with pytest.raises(InvalidArgument, match=culprit):
        sent(value)


@pytest.mark.parametrize("form", ["content", "typed", "repeated"])
def test_bfloat16_is_read_as_float32(form: str) -> None:
    """numpy lacks the type; every number of it is a float32."""
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_BFLOAT16)
    tensor.tensor_shape.dim.add(size=2)
    if form == "content":
        tensor.tensor_content = bytes.fromhex("c03f c03f")
    else:
        tensor.half_val.extend([0x3FC0] * (2 if form == "typed" else 1))
    array = read_tensor(tensor, "x")
    assert array.dtype == np.float32
    assert array.tolist() == [1.5, 1.5]


@pytest.mark.parametrize("dtype", NARROW_FLOATS)
@pytest.mark.parametrize("shape", [(), (2, 3), (0, 2)])
def test_types_that_numpy_lacks_are_sent_and_read(
    dtype: str, shape: tuple[int, ...]
) -> None:
    """They are asked for by name, and come back as the same numbers in float32."""
    array = np.full(shape, 1.25)
    tensor = tensor_pb2.TensorProto()
    fill_tensor(tensor, Typed(array.tolist() if shape != (0, 2) else array, dtype), "x")
    assert types_pb2.DataType.Name(tensor.dtype) == f"DT_{dtype.upper()}"
    back = read_tensor(tensor, "x")
    assert back.dtype == np.float32
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, 2], "float32"),
        ([1.5], "float64"),
        ([255], "uint8"),
        ([2**64 - 1], "uint64"),
        ([2**64 - 1, 1], "uint64"),
        ([1, 0], "bool"),
        ([1 + 2j], "complex64"),
        (["a"], "string"),
    ],
)
def test_a_dtype_may_be_asked_for_by_name(values: list[Any], dtype: str) -> None:
    """Any dtype goes by its name in signatures."""
    tensor = tensor_pb2.TensorProto()
    fill_tensor(tensor, Typed(values, dtype), "x")
    back = read_tensor(tensor, "x")
    assert back.dtype == (np.dtype(object) if dtype == "string" else np.dtype(dtype))
    assert [each.decode() if dtype == "string" else each for each in back] == values


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([300], "uint8"),
        ([-1], "uint64"),
        ([1.5], "int32"),
        ([2], "bool"),
        ([2**64], "int64"),
        ([1, 2**64 - 1], "int64"),
        ([-1, 2**64 - 1], "uint64"),
        (["a"], "float32"),
        (["a"], "bfloat16"),
        ([1], "nonsense"),
    ],
)
def test_only_floats_are_rounded(values: list[Any], dtype: str) -> None:
    """A number that a dtype does not have is refused, not wrapped around or cut."""
    with pytest.raises(InvalidArgument, match="'x'"):
        fill_tensor(tensor_pb2.TensorProto(), Typed(values, dtype), "x")


def test_contents_that_do_not_fit_are_refused() -> None:
    """A reply that contradicts itself is an error that names the output."""
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_FLOAT, tensor_content=b"abc")
    with pytest.raises(InvalidArgument, match="'x'"):
        read_tensor(tensor, "x")


@pytest.mark.parametrize("sizes", [[-1], [2, -3], [1 << 62, 0, 4], [1 << 40, 1 << 40]])
@pytest.mark.parametrize("dtype", [types_pb2.DT_FLOAT, types_pb2.DT_STRING])
def test_shapes_that_there_cannot_be_are_refused(
    sizes: list[int], dtype: types_pb2.DataType
) -> None:
    """Whatever numpy says of them: the caller expects errors of ours."""
    tensor = tensor_pb2.TensorProto(dtype=dtype)
    for size in sizes:
        tensor.tensor_shape.dim.add(size=size)
    with pytest.raises(InvalidArgument, match="output 'x'"):
        read_tensor(tensor, "x")


def test_values_beyond_their_dtype_are_refused() -> None:
    """A typed field is wider than some that it is for."""
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_INT8, int_val=[300])
    with pytest.raises(InvalidArgument, match="output 'x'"):
        read_tensor(tensor, "x")


def test_arrays_of_numpys_new_strings_are_sent() -> None:
    """Strings of variable length are strings."""
    dtypes = pytest.importorskip("numpy.dtypes")
    if not hasattr(dtypes, "StringDType"):
        pytest.skip("numpy 2 has them")
    array = np.array([["a", "\u00fc"]], dtype=dtypes.StringDType())
    assert sent(array).tolist() == [[b"a", b"\xc3\xbc"]]


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn"])
def test_arrays_of_ml_dtypes_are_sent(name: str) -> None:
    """Where that package gives numpy the type, it has a wire form."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([[1.5, -2.0]], dtype=getattr(ml_dtypes, name))
    tensor = tensor_pb2.TensorProto()
    fill_tensor(tensor, array, "x")
    assert types_pb2.DataType.Name(tensor.dtype) == f"DT_{name.upper()}"
    assert tensor.tensor_content == array.tobytes()


@pytest.mark.parametrize(
    ("field", "number", "values", "expected"),
    [
        ("float_val", types_pb2.DT_FLOAT, [1.0, 2.0], [1.0, 2.0, 2.0]),
        ("int_val", types_pb2.DT_INT8, [7], [7, 7, 7]),
        ("int64_val", types_pb2.DT_INT64, [], [0, 0, 0]),
        ("half_val", types_pb2.DT_HALF, [0x3C00], [1.0, 1.0, 1.0]),
        ("scomplex_val", types_pb2.DT_COMPLEX64, [1, 2], [1 + 2j, 1 + 2j, 1 + 2j]),
        ("bool_val", types_pb2.DT_BOOL, [True, False], [True, False, False]),
        ("uint32_val", types_pb2.DT_UINT32, [1, 2, 3, 4], [1, 2, 3]),
        ("half_val", types_pb2.DT_BFLOAT16, [0x3F80, 0x4000], [1.0, 2.0, 2.0]),
    ],
)
def test_typed_fields_are_read_by_upstreams_rule(
    field: str, number: Any, values: list[Any], expected: list[Any]
) -> None:
    """Too few values repeat the last one, too many are cut."""
    tensor = tensor_pb2.TensorProto(dtype=number)
    tensor.tensor_shape.dim.add(size=3)
    getattr(tensor, field).extend(values)
    assert read_tensor(tensor, "x").tolist() == expected


def test_floats_are_read_without_an_object_for_each() -> None:
    """They arrive bit for bit; Python's floats would quieten NaNs that signal."""
    bits = b"\x01\x00\xa0\x7f" * 2
    packed = b"\x08\x01\x12\x04\x12\x02\x08\x02\x2a\x08" + bits
    found = read_tensor(tensor_pb2.TensorProto.FromString(packed), "x")
    assert found.tobytes() == bits
    found[0] = 1.0  # it is the caller's own


def test_an_odd_number_of_parts_makes_no_complex_number() -> None:
    """The half of a number is left out, and the last whole one is repeated."""
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_COMPLEX64)
    tensor.tensor_shape.dim.add(size=2)
    tensor.scomplex_val.extend([1, 2, 3])
    assert read_tensor(tensor, "x").tolist() == [1 + 2j, 1 + 2j]


@pytest.mark.parametrize(
    ("number", "field", "value"),
    [
        (types_pb2.DT_FLOAT, "float_val", [1.0]),
        (types_pb2.DT_STRING, "string_val", [b"a"]),
        (types_pb2.DT_BFLOAT16, "half_val", []),
    ],
)
def test_a_shape_of_far_more_than_was_sent_is_refused(
    number: Any, field: str, value: list[Any]
) -> None:
    """It is refused before memory is taken: a reply of twenty bytes took gigabytes."""
    tensor = tensor_pb2.TensorProto(dtype=number)
    for size in (1 << 20, 1 << 12):
        tensor.tensor_shape.dim.add(size=size)
    getattr(tensor, field).extend(value)
    with pytest.raises(InvalidArgument, match=r"bytes of shape .* were not sent"):
        read_tensor(tensor, "x")


def test_content_of_booleans_that_holds_others_is_refused() -> None:
    """numpy would count such a byte as more than one."""
    tensor = tensor_pb2.TensorProto(dtype=types_pb2.DT_BOOL, tensor_content=b"\1\2")
    tensor.tensor_shape.dim.add(size=2)
    with pytest.raises(InvalidArgument, match="neither 0 nor 1"):
        read_tensor(tensor, "x")


def _interesting(dtype: str) -> torch.Tensor:
    """Every number of the type, what lies between two of them, and what is beyond."""
    kind = getattr(torch, dtype)
    if dtype == "bfloat16":
        bits = torch.arange(0, 1 << 16, 7, dtype=torch.int32).to(torch.int16)
        exact = bits.view(torch.bfloat16).float()
    else:
        exact = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(kind).float()
    finite = exact[exact.isfinite()].sort().values
    middles = (finite[1:] + finite[:-1]) / 2
    beside = torch.cat(
        [torch.nextafter(middles, each) for each in (finite[1:], finite[:-1])]
    )
    seeded = torch.randn(2000, generator=torch.manual_seed(0)) * 100
    far = torch.tensor([448, 464, 465, 480, 61440, 61441, 1e9, 248, 249, 1e-9, 0.0])
    special = torch.tensor([float("inf"), float("nan")])
    values = torch.cat([exact, middles, beside, seeded, far, special])
    return torch.cat([values, -values])


@pytest.mark.parametrize("dtype", NARROW_FLOATS)
def test_numbers_are_rounded_as_torch_does(dtype: str) -> None:
    """The code of every number is torch's: exact, between two, too large, or none."""
    values = _interesting(dtype)
    wanted = values.to(getattr(torch, dtype))
    codes = encode(values.numpy(), dtype)
    assert codes.itemsize == wanted.element_size()
    np.testing.assert_array_equal(decode(codes, dtype), wanted.float().numpy())
    is_number = ~values.isnan().numpy()
    own = wanted.view(torch.uint8 if codes.itemsize == 1 else torch.uint16).numpy()
    np.testing.assert_array_equal(codes[is_number], own[is_number])


@pytest.mark.parametrize("dtype", NARROW_FLOATS)
def test_shapes_stay(dtype: str) -> None:
    """Scalars and tensors without elements are converted too."""
    for shape in ((), (0, 3), (2, 1)):
        codes = encode(np.ones(shape, dtype=np.float32), dtype)
        assert codes.shape == shape
        assert decode(codes, dtype).shape == shape
