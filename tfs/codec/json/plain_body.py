"""Reads the ordinary Predict request over HTTP: one tensor of numbers, and nothing else.

Whatever has more in it (names, strings, booleans, a signature, a fault) is left to
:mod:`tfs.codec.json.predict_body`, which says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import orjson

from tfs.codec.json.document import end_of_only_string, has_words
from tfs.codec.json.packed import parse_msgpack, parse_npy
from tfs.codec.json.predict_body import INPUTS, INSTANCES, Layout, PredictBody
from tfs.codec.json.tensor_reader import plain_array
from tfs.core.dtype import (
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType,
)
from tfs.core.errors import ServingError
from tfs.core.tensor_view import Buffer, TensorView

PLAIN_DTYPES: Final = frozenset(
    (
        *(FLOAT16, FLOAT32, FLOAT64, INT8, INT16, INT32, INT64),
        *(UINT8, UINT16, UINT32, UINT64),
    )
)
_SMALL_BYTES: Final = 512  # are copied in less time than a view takes


class PlainBody(NamedTuple):
    """The only tensor of a request, and the layout of the reply."""

    layout: Layout
    shape: tuple[int, ...]
    elements: Buffer


def read_plain_json(body: Buffer, name: str, dtype: DType) -> PlainBody | None:
    """Returns the tensor that a body of JSON is; None if it is more, or wrong.

    numpy should be told not to warn of floats beyond their type.

    Args:
        body: The body.
        name: The only input of the signature, which need not be named.
        dtype: Its dtype.

    """
    if type(body) is not bytes:
        return None
    behind = end_of_only_string(body)  # no names, strings or signature follow
    if not behind or has_words(body, behind):
        return None
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if type(document) is not dict:
        return None
    layout, values = Layout.ROWS, document.get(INSTANCES)
    if values is None:
        layout, values = Layout.COLUMNS, document.get(INPUTS)
    if type(values) is not list or not values:
        return None
    array = plain_array(values, dtype)
    return None if array is None else PlainBody(layout, array.shape, array.tobytes())


def read_plain_npy(body: Buffer, name: str, dtype: DType) -> PlainBody | None:
    """Returns the tensor that a ``.npy`` file is; None if something is wrong with it."""
    return _read(parse_npy, body, name, dtype)


def read_plain_msgpack(body: Buffer, name: str, dtype: DType) -> PlainBody | None:
    """Returns the tensor that MessagePack is; None if it is more, or wrong."""
    return _read(parse_msgpack, body, name, dtype)


def _read(
    parse: Callable[[Buffer], PredictBody], body: Buffer, name: str, dtype: DType
) -> PlainBody | None:
    try:
        parsed = parse(body)
    except ServingError:
        return None
    view = parsed.values
    if type(view) is dict and view.keys() == {name}:
        view = view[name]
    if type(view) is not TensorView or parsed.signature_name or view.dtype is not dtype:
        return None
    data = view.buffer
    if len(data) <= _SMALL_BYTES:
        data = bytes(data)
    return PlainBody(parsed.layout, view.shape, data)
