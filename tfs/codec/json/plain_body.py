"""Reads the ordinary Predict request in JSON: one tensor of numbers, and nothing else.

Whatever has more in it (names, strings, booleans, a signature, a fault) is left to
:mod:`tfs.codec.json.predict_body`, which says what is wrong.
"""

from __future__ import annotations

import orjson

from tfs.codec.json.document import end_of_only_string, has_words
from tfs.codec.json.predict_body import INPUTS, INSTANCES, Layout
from tfs.codec.json.tensor_reader import plain_array
from tfs.core.dtype import DType
from tfs.core.tensor_view import Buffer


def read_plain_json(
    body: Buffer, dtype: DType
) -> tuple[Layout, tuple[int, ...], bytes] | None:
    """Returns layout, shape and elements of a body of JSON; None if it is more, or wrong.

    numpy should be told not to warn of floats beyond their type.

    Args:
        body: The body.
        dtype: Of the only input of the signature.

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
    return None if array is None else (layout, array.shape, array.tobytes())
