"""numpy arrays (or nested lists) to TensorProto and back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from numbers import Number
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tfs.client.results import Array
from tfs.codec.decode_options import FillBudget
from tfs.codec.tensor import BY_DTYPE, tensor_view_of
from tfs.core.dtype import DTYPES, STRING, DType
from tfs.core.errors import InvalidArgument, ResourceExhausted
from tfs.core.tensor_view import TensorView
from tfs.proto.tensorflow.core.framework import tensor_pb2, types_pb2

Floats = npt.NDArray[np.float32]

NARROW_FLOATS: Final = (
    "bfloat16",
    "float8_e5m2",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
)
"""The names of these types, as in signatures."""

# Mantissa bits and exponent bias; the codes of the largest finite number, for what is
# beyond it, and of NaN (all without their sign).
_FORMATS: Final = {
    "float8_e5m2": (2, 15, 0x7B, 0x7C, 0x7E),
    "float8_e4m3fn": (3, 7, 0x7E, 0x7E, 0x7F),
    "float8_e4m3fnuz": (3, 8, 0x7F, 0x80, 0x80),
    "float8_e5m2fnuz": (2, 16, 0x7F, 0x80, 0x80),
}
_SIGN: Final = 0x80


def encode(values: Floats, dtype: str) -> npt.NDArray[Any]:
    """Returns the codes of the nearest numbers: uint16 of bfloat16, else uint8."""
    if dtype == "bfloat16":
        return _encode_bfloat16(values)
    _, _, largest, beyond, nan = _FORMATS[dtype]
    numbers = _magnitudes(dtype)
    is_nan = np.isnan(values)
    sizes = np.where(is_nan, np.float32(0), np.abs(values))
    # The first number that is not smaller; the one before it may be nearer.
    codes = np.searchsorted(numbers[: largest + 2], sizes).clip(1, largest + 1)
    low, high = sizes - numbers[codes - 1], numbers[codes] - sizes
    codes = codes - ((low < high) | ((low == high) & (codes % 2 == 1)))
    codes = np.where(codes > largest, beyond, codes)
    codes = np.where(is_nan, nan, codes)
    has_sign = np.signbit(values)
    if nan == _SIGN:  # one zero and one NaN, which is where -0 would be
        has_sign &= (codes != 0) & (codes != nan)
    return np.asarray(codes | np.where(has_sign, _SIGN, 0), dtype=np.uint8)


def decode(codes: npt.NDArray[Any], dtype: str) -> Floats:
    """Returns the numbers that the codes stand for, exactly."""
    if dtype == "bfloat16":
        return (codes.astype("<u4") << 16).view(np.float32)
    return np.asarray(_numbers(dtype)[codes], dtype=np.float32)


def _encode_bfloat16(values: Floats) -> npt.NDArray[np.uint16]:
    bits = np.array(values, dtype=np.float32, order="C").view(np.uint32)
    rounded = (bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16
    # Rounding could make a NaN infinite.
    return np.where(np.isnan(values), bits >> 16 | 0x40, rounded).astype(np.uint16)


@cache
def _magnitudes(dtype: str) -> npt.NDArray[np.float64]:
    """Returns the number of every code without a sign, and of one code more."""
    mantissa_bits, bias, _, _, _ = _FORMATS[dtype]
    codes = np.arange(_SIGN + 1)
    exponents, mantissas = codes >> mantissa_bits, codes % (1 << mantissa_bits)
    mantissas = np.where(exponents > 0, mantissas + (1 << mantissa_bits), mantissas)
    powers = np.maximum(exponents, 1) - bias - mantissa_bits
    return np.asarray(np.ldexp(mantissas.astype(np.float64), powers), dtype=np.float64)


@cache
def _numbers(dtype: str) -> Floats:
    _, _, largest, beyond, nan = _FORMATS[dtype]
    numbers = _magnitudes(dtype)[:_SIGN].astype(np.float32)
    numbers[largest + 1 :] = np.nan
    if largest < beyond < nan:
        numbers[beyond] = np.inf
    signed = np.concatenate([numbers, -numbers])
    if nan == _SIGN:
        signed[nan] = np.nan
    return signed


_MOST_FILLED_BYTES: Final = 64 << 20
"""Most bytes of elements that a reply may leave out. Servers send all of them, and a
shape alone must not make a client take gigabytes."""

_UINT64_ONLY: Final = 2.0**63
"""Numbers from this one on do not fit into int64."""
_NO_LIMIT_BYTES: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Typed:
    """Values to be sent as a dtype named as in signatures. Immutable.

    For bfloat16 and the float8 types, which numpy does not have. Floats are rounded to
    nearest; other numbers must be exactly representable.

    Attributes:
        values: An array, a number, a string or nested lists of them.
        dtype: "bfloat16", "uint8", "string", ...

    """

    values: object
    dtype: str


def fill_tensor(tensor: tensor_pb2.TensorProto, value: object, name: str) -> None:
    """Writes an array, a number, a string or nested lists of them into ``tensor``.

    Python floats become float32 and Python ints int64, as models expect far more
    often than numpy's own defaults; pass an array or :class:`Typed` to choose.

    Raises:
        InvalidArgument: Ragged lists, a dtype that has no wire form, or values that
            the dtype asked for does not have.

    """
    if isinstance(value, Typed):
        if value.dtype in NARROW_FLOATS:
            array = converted(value.values, "float32", name)
            _fill_numbers(tensor, encode(array, value.dtype), DTYPES[value.dtype])
            return
        value = converted(value.values, value.dtype, name)
    array = as_array(value, name)
    if array.dtype.kind in "OSU":
        tensor.dtype = types_pb2.DT_STRING
        items = array.ravel().tolist()
        odd = [item for item in items if not isinstance(item, str | bytes)]
        if odd:
            others = [item for item in odd if not isinstance(item, Number)]
            if not others and len(odd) == len(items):
                raise InvalidArgument(f"input {name!r} {_why_no_dtype(odd)}")
            raise InvalidArgument(
                f"input {name!r} holds {(others or odd)[0]!r:.40}; send numbers only, or "
                "strings only"
            )
        _fill_shape(tensor, array)
        tensor.string_val.extend(as_bytes(item, name) for item in items)
        return
    dtype = DTYPES.get(array.dtype.name)
    if dtype is None:
        raise InvalidArgument(f"input {name!r}: dtype {array.dtype} cannot be sent")
    _fill_numbers(tensor, array, dtype)


def _fill_numbers(tensor: tensor_pb2.TensorProto, array: Array, dtype: DType) -> None:
    _fill_shape(tensor, array)
    tensor.dtype = BY_DTYPE[dtype].number  # type: ignore[assignment]  # the enum's int
    little = array.dtype.newbyteorder("<")
    tensor.tensor_content = np.ascontiguousarray(array, dtype=little).tobytes()


def _fill_shape(tensor: tensor_pb2.TensorProto, array: Array) -> None:
    tensor.tensor_shape.SetInParent()
    for size in array.shape:
        tensor.tensor_shape.dim.add(size=size)


def _why_no_dtype(numbers: list[Any]) -> str:
    if all(isinstance(each, int) for each in numbers):
        largest = max(numbers, key=abs)
        if abs(largest) >= _UINT64_ONLY:
            return f"holds {largest}, for which there is no dtype"
    return (
        f"holds numbers as Python objects, such as {numbers[0]!r:.40}; give it a dtype: "
        "astype('float32'), or Typed(values, 'float32')"
    )


def read_tensor(tensor: tensor_pb2.TensorProto, name: str) -> Array:
    """Returns the array, from raw content or typed fields, the last value repeated.

    bfloat16 and float8, which numpy does not have, come as the same numbers in float32.

    Raises:
        InvalidArgument: A dtype numpy does not have, a shape or contents that do not fit,
            or a shape of far more elements than were sent.

    """
    if tensor.tensor_shape.unknown_rank:
        raise InvalidArgument(f"output {name!r} has no shape of its own")
    budget = FillBudget(_NO_LIMIT_BYTES, max_fill_bytes=_MOST_FILLED_BYTES)
    try:
        view = tensor_view_of(tensor, budget)
        return _array_of(view, tensor)
    except ResourceExhausted as error:
        shape = [dim.size for dim in tensor.tensor_shape.dim]
        raise InvalidArgument(
            f"output {name!r}: too many bytes of shape {shape} were not sent"
        ) from error
    except InvalidArgument as error:
        raise InvalidArgument(f"output {name!r}: {error.message}") from error
    except (ValueError, OverflowError, MemoryError) as error:
        raise InvalidArgument(f"output {name!r} cannot be read: {error}") from error


def _array_of(view: TensorView, tensor: tensor_pb2.TensorProto) -> Array:
    if view.dtype is STRING:
        strings = np.empty(len(view.data), dtype=object)
        strings[:] = view.data
        return strings.reshape(view.shape)
    name = view.dtype.name
    if name in NARROW_FLOATS:
        codes = np.frombuffer(view.buffer, f"<u{view.dtype.item_bytes}")
        return decode(codes.reshape(view.shape), name)
    dtype = np.dtype(name).newbyteorder("<")
    if dtype.itemsize < 4:
        np.array(tensor.int_val, dtype)  # refuses what is beyond it
    return np.frombuffer(view.buffer, dtype).reshape(view.shape).copy()


def converted(value: object, dtype: str, name: str) -> Array:
    """Returns an array of that dtype, one that numpy has.

    Raises:
        InvalidArgument: Values that are not numbers, or that the dtype does not have:
            only floats may be rounded.

    """
    array = as_array(value, name, floats=np.float64)
    if dtype == "string":
        if array.size and array.dtype.kind not in "OSU":
            raise InvalidArgument(
                f"input {name!r}: {array.dtype} values are no strings"
            )
        return array if array.size else array.astype(object)
    if array.dtype.kind in "OSU":
        for item in array.ravel().tolist():
            if not isinstance(item, Number):  # numpy makes a number even of None
                raise InvalidArgument(f"input {name!r}: {item!r} is no number")
    try:
        wanted = np.dtype(dtype)
        with np.errstate(all="ignore"):
            found = array.astype(wanted, casting="unsafe")
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"input {name!r}: {error}") from error
    if wanted.kind in "iub" and not np.array_equal(found, array):
        raise InvalidArgument(f"input {name!r}: a value does not fit {dtype}")
    return found


def as_array(
    value: object, name: str, floats: type[np.floating[Any]] = np.float32
) -> Array:
    """Returns the value as an array; Python floats, alone or in lists, as ``floats``.

    An object that numpy reads as an array, such as a tensor of torch, keeps its dtype.

    Raises:
        InvalidArgument: Ragged lists, masked values, strings that may have lost zeros,
            or an object that numpy cannot read.

    """
    if _has_masked(value):
        raise InvalidArgument(
            f"input {name!r} has masked values, and no dtype has; say with filled() what "
            "they are to be"
        )
    if isinstance(value, np.ndarray):
        return _whole_strings(value, name) if value.dtype.kind in "STU" else value
    try:
        try:
            array = np.asarray(value)
        except UnicodeDecodeError:  # text mixed with bytes that are not text
            array = np.asarray(value, dtype=object)
        if array.dtype.kind in "SU":
            # numpy's own strings lose their trailing zeros.
            array = np.asarray(_plain_strings(value, name), dtype=object)
    except (ValueError, TypeError, RuntimeError) as error:  # whatever a library raises
        if "inhomogeneous" in str(error):
            raise InvalidArgument(
                f"input {name!r}: its lists differ in length; fill them up to one, or "
                "send a request for each"
            ) from error
        raise InvalidArgument(f"input {name!r}: {error}") from error
    if array.dtype == np.float64 and not hasattr(value, "__array__"):
        if (np.abs(array) >= _UINT64_ONLY).any():
            integers = np.asarray(value, dtype=object)
            if all(isinstance(item, int) for item in integers.ravel()):
                return _unsigned(integers)
        return array.astype(floats)
    return array


def _plain_strings(value: object, name: str) -> object:
    """Returns strings, lists of them, and arrays in place of lists as Python's own."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return bytes(value)  # numpy makes fixed-width bytes of its own type again
    if isinstance(value, list | tuple):
        if set(map(type, value)) <= {str, bytes}:
            return value
        return [_plain_strings(each, name) for each in value]
    array = np.asarray(value)
    return (
        _whole_strings(array, name) if array.dtype.kind in "STU" else array
    ).tolist()


def _whole_strings(array: Array, name: str) -> Array:
    """Returns numpy's strings as Python's.

    Raises:
        InvalidArgument: Zeros at their ends may be lost. numpy fills shorter ones of
            fixed width up with zeros, and makes an array as wide as its longest one.

    """
    kind = array.dtype.kind
    if array.size and kind in "SU":
        lengths = np.char.str_len(array)
        width = array.dtype.itemsize // (4 if kind == "U" else 1)
        # Bytes may well end in zeros. Text hardly ever does: of that, only an array
        # whose width nothing explains is refused.
        most = lengths.min() if kind == "S" else lengths.max() or width
        if most < width:
            raise InvalidArgument(
                f"input {name!r}: numpy's {array.dtype.str[1:]} does not say whether "
                "strings that are shorter end in zeros: pass a list, or an array of dtype "
                "object"
            )
    return array.astype(object)


def _has_masked(value: object) -> bool:
    """Tells whether an array, or a row of a list, has masked values.

    numpy forgets the masks of rows, and makes NaN of a masked element.
    """
    rows = value if isinstance(value, list | tuple) else (value,)
    if not any(issubclass(each, np.ma.MaskedArray) for each in {*map(type, rows)}):
        return False
    return any(np.ma.is_masked(row) for row in rows)


def _unsigned(integers: Array) -> Array:
    """Returns Python's integers as uint64, where they all fit; numpy rounds such lists."""
    try:
        if not (integers < 0).any():
            return integers.astype(np.uint64)
    except OverflowError:
        pass
    return integers  # only a dtype that has such numbers takes them


def as_bytes(item: object, name: str) -> bytes:
    """Returns text as UTF-8, and bytes as they are.

    Raises:
        InvalidArgument: It is neither.

    """
    if isinstance(item, str):
        try:
            return item.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"input {name!r}: {error}") from error
    if isinstance(item, bytes):
        return item
    if isinstance(item, int):  # numpy has no dtype for it
        raise InvalidArgument(f"input {name!r}: no dtype has {item!r:.40}")
    raise InvalidArgument(f"input {name!r}: {type(item).__name__} cannot be sent")
