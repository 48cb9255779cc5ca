"""Writes tensors as JSON.

Floats have the fewest digits that read back as the same float of their type, always
with a point or an exponent; what is not finite is the token NaN, Infinity or -Infinity,
as in TensorFlow Serving. Strings of outputs whose name ends in ``_bytes`` are
``{"b64": "..."}``; bytes of others that are no UTF-8 become U+FFFD. A complex number is
a list of its real and its imaginary part.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import orjson

from tfs.codec.json.predict_body import Layout
from tfs.codec.json.tensor_reader import BYTES_KEY
from tfs.core.dtype import BFLOAT16, COMPLEX64, COMPLEX128, DTYPES, STRING, DType
from tfs.core.errors import InvalidArgument, Unimplemented
from tfs.core.tensor_view import TensorView

PREDICTIONS: Final = "predictions"
OUTPUTS: Final = "outputs"
_BYTES_SUFFIX: Final = "_bytes"
_PLAIN: Final = {dtype: np.dtype(name) for name, dtype in DTYPES.items() if dtype.code}


def write_predict_reply(outputs: Mapping[str, TensorView], layout: Layout) -> bytes:
    """Returns the body of the reply to a Predict request of that layout. Thread-safe.

    Raises:
        InvalidArgument: There are no outputs; or they have not equally many rows, which
            rows need.
        Unimplemented: An output's dtype has no form in JSON.

    """
    if not outputs:
        raise InvalidArgument("Cannot convert empty tensor map to JSON")
    if layout is Layout.COLUMNS:
        columns = {name: json_value(name, view) for name, view in outputs.items()}
        whole = columns if len(columns) > 1 else next(iter(columns.values()))
        return dump({OUTPUTS: whole})
    return dump({PREDICTIONS: rows_of(outputs)})


def write_plain_replies(
    view: TensorView, layout: Layout, num_rows: int, num_replies: int
) -> list[bytes] | None:
    """Returns the replies to requests of ``num_rows`` each that were computed together.

    ``view`` has the outputs of all, one after the other. None if they have to be written
    one by one: strings, and what is not finite.
    """
    if view.dtype is STRING or not view.shape:
        return None
    array = array_of(view)[: num_rows * num_replies]
    if not array.size:
        return None
    array = array.reshape(num_replies, num_rows, *array.shape[1:])
    text = orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY)
    if b"n" in text and array.dtype.kind == "f":  # null, for what is not finite
        return None
    key = (PREDICTIONS if layout is Layout.ROWS else OUTPUTS).encode()
    # So many brackets in a row stand between replies alone.
    depth = array.ndim - 1
    begin, end = b"[" * depth, b"]" * depth
    own = text[1 + depth : -1 - depth].split(b"%b,%b" % (end, begin))
    return [b'{"%b":%b%b%b}' % (key, begin, each, end) for each in own]


def rows_of(outputs: Mapping[str, TensorView]) -> Any:
    """Returns the rows of outputs: their values, or objects where there are several.

    Raises:
        InvalidArgument, Unimplemented: As :func:`write_predict_reply`.

    """
    num_rows = -1
    for name, view in outputs.items():
        if not view.shape:
            raise InvalidArgument(f"Tensor name: {name} has no shape information ")
        if num_rows not in (-1, view.shape[0]):
            raise InvalidArgument(
                f"Tensor name: {name} has inconsistent batch size: {view.shape[0]} "
                f"expecting: {num_rows}"
            )
        num_rows = view.shape[0]
    values = {name: json_value(name, view) for name, view in outputs.items()}
    if len(values) == 1:
        return next(iter(values.values()))
    return [
        {name: column[row] for name, column in values.items()}
        for row in range(num_rows)
    ]


def json_value(name: str, view: TensorView) -> Any:
    """Returns a tensor as what :func:`dump` takes: an array, or lists of strings."""
    if view.dtype is STRING:
        if name.endswith(_BYTES_SUFFIX):
            flat: list[Any] = [
                {BYTES_KEY: base64.b64encode(each).decode()} for each in view.strings
            ]
        else:
            flat = [each.decode("utf-8", "replace") for each in view.strings]
        return nested_strings(flat, view.shape)
    array = array_of(view)
    return array if array.shape else array[()]


def array_of(view: TensorView) -> Any:
    """Returns a tensor of numbers as an array of numbers that JSON has.

    Raises:
        Unimplemented: The dtype has no form in JSON.

    """
    dtype: DType = view.dtype
    plain = _PLAIN.get(dtype)
    if plain is not None:
        return np.frombuffer(view.buffer, plain).reshape(view.shape)
    if dtype is BFLOAT16:
        half = np.frombuffer(view.buffer, "<u2")
        return (half.astype(np.uint32) << 16).view(np.float32).reshape(view.shape)
    if dtype in (COMPLEX64, COMPLEX128):
        part = "<f4" if dtype is COMPLEX64 else "<f8"
        return np.frombuffer(view.buffer, part).reshape((*view.shape, 2))
    raise Unimplemented(f"Failed to write JSON value for tensor type: {dtype.name}")


def dump(document: Any) -> bytes:
    """Returns a document of Python values and arrays as JSON."""
    text = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    # To look for a single byte takes a tenth of the time.
    if b"l" not in text or b"null" not in text or _is_finite(document):
        return text
    return json.dumps(document, default=_plain, separators=(",", ":")).encode()


def _is_finite(value: Any) -> bool:
    """Tells whether all floats in arrays are finite; orjson writes null for others."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind != "f" or bool(np.isfinite(value).all())
    if type(value) is dict:
        return all(map(_is_finite, value.values()))
    if type(value) is list:
        return all(map(_is_finite, value))
    return True


def _plain(value: Any) -> Any:
    """Returns an array as nested lists of floats with as few digits as its type needs."""
    if value.dtype.kind != "f" or value.dtype.itemsize == 8:
        return value.tolist()
    shortest = np.array([float(str(each)) for each in value.ravel()], float)
    return shortest.reshape(value.shape).tolist()


def nested_strings(flat: Sequence[Any], shape: Sequence[int]) -> Any:
    """Returns values as nested lists of that shape; the only value for a scalar."""
    array = np.empty(len(flat), object)
    array[:] = flat
    return array.reshape(shape).tolist()
