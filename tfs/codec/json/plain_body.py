"""Reads ordinary Predict requests in JSON: one tensor of numbers each, and nothing else.

Those that came together become one array, if they have one layout and shape. Whatever has
more in it (names, strings, booleans, a signature, a fault) is left to
:mod:`tfs.codec.json.predict_body`, which says what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import orjson

from tfs.codec.json.predict_body import INPUTS, INSTANCES, Layout
from tfs.codec.json.tensor_reader import plain_array
from tfs.core.dtype import DType
from tfs.core.tensor_view import Buffer

PlainBody: TypeAlias = tuple[Layout, tuple[int, ...], bytes]
"""Layout, shape and elements."""

_EXACT: Final = 2.0**53  # integers up to that are floats, too


def read_plain_json(
    bodies: Sequence[Buffer], dtype: DType
) -> Sequence[PlainBody | None]:
    """Returns what each body of JSON is; None for those that are more, or wrong.

    Args:
        bodies: The bodies.
        dtype: Of the only input of the signature.

    """
    if not all(type(body) is bytes for body in bodies):
        return [None] * len(bodies)
    with np.errstate(over="ignore"):
        found = _read_alike(bodies, dtype)
        if found is None and len(bodies) > 1:
            return [_read_one(body, dtype) for body in bodies]
    return [None] * len(bodies) if found is None else found


def _read_one(body: Buffer, dtype: DType) -> PlainBody | None:
    found = _read_alike((body,), dtype)
    return None if found is None else found[0]


def _read_alike(bodies: Sequence[Buffer], dtype: DType) -> list[PlainBody] | None:
    """Returns what bodies of one layout and shape are; None if they are not just that."""
    num = len(bodies)
    try:
        documents = [orjson.loads(body) for body in bodies]
        layout, key = Layout.ROWS, INSTANCES
        if key not in documents[0]:
            layout, key = Layout.COLUMNS, INPUTS
        values = [document[key] for document in documents]
    except (orjson.JSONDecodeError, TypeError, KeyError):
        return None
    # Each has a string, its key, so it is the only one if there are no others in all of
    # them. Then no key comes twice, nothing else is named, and of "true" and "false",
    # which numpy takes for numbers, one letter shows.
    text = b"".join(bodies)
    if (
        text.count(b'"') != 2 * num
        or b"\\" in text  # an escape in a key would hide one of its letters
        or b"r" in text
        or text.count(b"s") != num * key.count("s")
    ):
        return None
    array = plain_array(values, dtype)
    if array is None or array.ndim < 2 or not array.size:
        return None
    if num > 1 and array.dtype.kind == "f" and abs(array).max() > _EXACT:
        return None  # an integer may have become a float for the sake of the others
    shape, elements = array.shape[1:], array.tobytes()
    if num == 1:
        return [(layout, shape, elements)]
    size = len(elements) // num
    return [
        (layout, shape, elements[start : start + size])
        for start in range(0, num * size, size)
    ]
