"""numpy arrays (or nested lists) to TensorProto and back."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Number
from typing import Any, Final

import numpy as np

from tfs.client.narrow_floats import NARROW_FLOATS, decode, encode
from tfs.client.results import Array
from tfs.codec.decode_options import FillBudget
from tfs.codec.tensor import tensor_view_of
from tfs.codec.wire_type import BY_DTYPE
from tfs.core.dtype import DTYPES, STRING, DType
from tfs.core.errors import InvalidArgument, ResourceExhausted
from tfs.core.tensor_view import TensorView
from tfs.proto.tensorflow.core.framework import tensor_pb2, types_pb2

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
