"""Reads the JSON value of a tensor, by the dtype that its signature promises.

The nesting of lists is the shape. numpy reads lists of numbers; whatever it does not
plainly take is walked value by value, which finds what is wrong and says so in
TensorFlow Serving's words (util/json_tensor.cc). Beyond what TensorFlow Serving takes:
float16 and bfloat16 are numbers like float32, and a complex number is a list of its
real and its imaginary part.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tfs.codec.json.document import Value, shown, type_name
from tfs.core.dtype import (
    BFLOAT16,
    BOOL,
    COMPLEX64,
    COMPLEX128,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    STRING,
    DType,
)
from tfs.core.errors import InvalidArgument, ServingError, Unimplemented
from tfs.core.tensor_view import TensorView

BYTES_KEY: Final = "b64"
MAX_RANK: Final = 32

_FLOATS: Final[dict[DType, Any]] = {
    FLOAT32: np.dtype("<f4"),
    FLOAT64: np.dtype("<f8"),
    FLOAT16: np.dtype("<f2"),
    BFLOAT16: np.dtype("<f4"),
    COMPLEX64: np.dtype("<f4"),
    COMPLEX128: np.dtype("<f8"),
}
_TENSORFLOW_NAMES: Final = {"float32": "float", "float64": "double", "float16": "half"}


def is_bytes(value: Value) -> bool:
    """Tells whether a value stands for bytes: an object ``{"b64": "..."}``."""
    return type(value) is dict and len(value) == 1 and type(value.get(BYTES_KEY)) is str


def may_have_bools(body: bytes) -> bool:
    """Tells whether ``true`` or ``false`` may stand in JSON among other values.

    To look for words takes as long as parsing, for single bytes a tenth of that.
    """
    return (b"r" in body and b"true" in body) or (b"l" in body and b"false" in body)


def read_tensor(value: Value, dtype: DType, *, has_bools: bool) -> TensorView:
    """Returns the tensor that a value is. Thread-safe.

    Args:
        value: Lists of lists of elements, or one element.
        dtype: The signature's.
        has_bools: Whether true and false may stand in it, which numpy takes for numbers.

    Raises:
        InvalidArgument: The lists are ragged, or an element does not fit the dtype.
        Unimplemented: There is no JSON form of the dtype.

    """
    if type(value) is TensorView:  # it came in a form of its own
        if value.dtype is not dtype:
            raise InvalidArgument(
                f"a tensor of {value.dtype} was sent for one of {dtype}"
            )
        return value
    if dtype is STRING:
        shape, elements = _walked(value, STRING)
        return TensorView(STRING, shape, tuple(elements))
    if dtype.name.startswith("float8"):
        raise Unimplemented(
            f"Conversion of JSON Value: {shown(value)} to type: {dtype.name}"
        )
    array = None
    if dtype is BOOL or not has_bools:
        with np.errstate(over="ignore"):
            array = plain_array(value, dtype)
    if array is None:
        shape, elements = _walked(value, dtype)
        target: Any = _FLOATS.get(dtype, dtype.name)
        with np.errstate(over="ignore"):
            array = np.array(elements, target).reshape(shape)
    return _view(array, dtype)


def plain_array(value: Value, dtype: DType) -> Any:
    """Returns an array of the elements if numpy read what the dtype takes; else None.

    Floats beyond their type become infinite, of which numpy warns unless it is told not
    to. There must be no ``true`` and no ``false`` among numbers.
    """
    try:
        array = np.array(value)
    except (ValueError, OverflowError):  # ragged, or too large
        return None
    kind = array.dtype.kind
    if array.ndim > MAX_RANK:
        return None
    if dtype is BOOL:
        return array if kind == "b" else None
    if kind not in "iuf":
        return None
    target = _FLOATS.get(dtype)
    if target is not None:
        return array.astype(target, copy=False)
    if not array.size:
        return array.astype(dtype.name)
    if kind == "f":
        return None
    limits = np.iinfo(dtype.name)
    if int(array.min()) < limits.min or int(array.max()) > limits.max:
        return None
    return array.astype(dtype.name, copy=False)


def _view(array: Any, dtype: DType) -> TensorView:
    shape = array.shape
    if dtype is BFLOAT16:
        bits = np.ascontiguousarray(array, "<f4").view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        nan = np.isnan(array)
        data = np.where(nan, 0x7FC0, rounded).astype("<u2").tobytes()
        return TensorView(dtype, shape, data)
    if dtype in (COMPLEX64, COMPLEX128) and shape[-1:] != (0,):
        if shape[-1:] != (2,):
            raise InvalidArgument(
                f"a {dtype.name} is a list of two numbers, [real, imaginary]; got the "
                f"shape {list(shape)}"
            )
        shape = shape[:-1]
    return TensorView(dtype, shape, array.tobytes())


def _shape_of(value: Value) -> tuple[int, ...]:
    """Returns the shape that the first elements of lists have."""
    shape: list[int] = []
    while type(value) is list:
        shape.append(len(value))
        if len(shape) > MAX_RANK:
            raise InvalidArgument(f"lists are nested more than {MAX_RANK} levels deep")
        if not value:
            break
        value = value[0]
    return tuple(shape)


def _walked(value: Value, dtype: DType) -> tuple[tuple[int, ...], list[Any]]:
    """Returns the shape of a value, and its elements, each checked."""
    shape, elements = _shape_of(value), list[Any]()
    _flatten(value, shape, 0, dtype, elements)
    return shape, elements


def _flatten(
    value: Value, shape: Sequence[int], level: int, dtype: DType, into: list[Any]
) -> None:
    """Appends the elements of nested lists, which must have this shape."""
    if type(value) is not list:
        if level != len(shape):
            raise InvalidArgument(
                f"JSON Value: {shown(value)} found at incorrect level: {level + 1} in "
                f"the JSON DOM. Expected at level: {len(shape)}"
            )
        into.append(_element(value, dtype))
        return
    if level >= len(shape):
        raise InvalidArgument(
            f"Encountered list at unexpected level: {level} expected < {len(shape)}"
        )
    if len(value) != shape[level]:
        raise InvalidArgument(
            f"Encountered list at unexpected size: {len(value)} at level: {level} "
            f"expected size: {shape[level]}"
        )
    for each in value:
        _flatten(each, shape, level + 1, dtype, into)


def _element(value: Value, dtype: DType) -> object:
    if dtype is STRING:
        return bytes_of(value)
    if dtype is BOOL:
        fits = isinstance(value, bool)
    elif isinstance(value, bool):
        fits = False
    elif dtype in _FLOATS:
        fits = isinstance(value, int | float)
    else:
        fits = isinstance(value, int)
        if fits:
            limits = np.iinfo(dtype.name)
            fits = limits.min <= value <= limits.max
    if not fits:
        raise _wrong_type(value, dtype)
    return value


def bytes_of(value: Value) -> bytes:
    """Returns the bytes of a string, or of ``{"b64": "..."}``.

    Raises:
        InvalidArgument: It is neither, or no base64.

    """
    if type(value) is bytes:  # which JSON has not, but MessagePack
        return value
    if type(value) is str:
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise InvalidArgument(
                f"JSON Value: {shown(value)} has half of a surrogate pair, which is no "
                "character"
            ) from None
    if type(value) is not dict:
        raise _wrong_type(value, STRING)
    if not is_bytes(value):
        raise InvalidArgument(
            f"JSON Value: {shown(value)} not formatted correctly for base64 data"
        )
    text = value[BYTES_KEY]
    try:
        return _decoded(text)
    except ValueError:
        pass
    try:
        return _decoded("".join(text.split()))  # encoders break lines
    except ValueError:
        raise InvalidArgument("Unable to base64 decode") from None


def _decoded(text: str) -> bytes:
    # As base64.b64decode, which would copy the text once more.
    return binascii.a2b_base64(text + "=" * (-len(text) % 4), strict_mode=True)


def _wrong_type(value: Value, dtype: DType) -> ServingError:
    expected = _TENSORFLOW_NAMES.get(dtype.name, dtype.name)
    return InvalidArgument(
        f"JSON Value: {shown(value)} Type: {type_name(value)} is not of expected type: "
        f"{expected}"
    )
