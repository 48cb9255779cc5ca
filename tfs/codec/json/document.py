"""Parses a body of JSON into Python values, and shows values in errors.

orjson parses nearly all bodies. What it refuses and TensorFlow Serving takes (NaN,
Infinity, Inf, text behind the value) goes to the standard library's parser. Of a key that
comes twice both take the last value.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final, TypeAlias

import orjson

from tfs.core.errors import InvalidArgument
from tfs.core.tensor_view import Buffer

Value: TypeAlias = Any
"""What JSON says: None, bool, int, float, str, or a list or dict of values."""

SIGNATURE_NAME: Final = "signature_name"
_MAX_SHOWN: Final = 256
_TYPE_NAMES: Final[dict[type, str]] = {
    type(None): "Null",
    int: "Number",
    float: "Number",
    str: "String",
    list: "Array",
    dict: "Object",
}


def parse_object(body: Buffer) -> dict[str, Value]:
    """Returns the object that a body is. Thread-safe; holds Python's lock meanwhile.

    Raises:
        InvalidArgument: It is malformed, nested more than some thousand levels deep, or
            no object.

    """
    if not body:
        raise InvalidArgument("JSON Parse error: The document is empty")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        value = _parse_leniently(bytes(body))
    if type(value) is not dict:
        raise wrong_form(value, "Is not object")
    return value


def _parse_leniently(body: bytes) -> Value:
    try:
        text = body.decode("utf-8")
        if "Inf" in text:
            text = _INF.sub(_infinity, text)
        start = len(text) - len(text.lstrip(" \t\r\n"))
        value, _ = _LENIENT.raw_decode(text, start)
    except json.JSONDecodeError as error:
        if start == len(text):
            what = "The document is empty."
        else:
            what = _RAPIDJSON_WORDS.get(error.msg, f"{error.msg}.")
        raise InvalidArgument(
            f"JSON Parse error: {what} at offset: {error.pos}"
        ) from None
    except UnicodeDecodeError as error:
        raise InvalidArgument(
            f"JSON Parse error: Invalid encoding in string. at offset: {error.start}"
        ) from None
    except RecursionError:
        raise InvalidArgument("JSON Parse error: values are nested too deep") from None
    return value


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise InvalidArgument(
            f"JSON Parse error: Number too big to be stored in double: {digits[:32]}"
        )
    return number


def _integer(digits: str) -> int | float:
    # As orjson does; longer ones take quadratic time.
    return int(digits) if len(digits) <= 20 else _finite(digits)


_LENIENT: Final = json.JSONDecoder(parse_float=_finite, parse_int=_integer)

# A string without an end is one all the same, or each of its quotes would be tried as a
# beginning, which takes quadratic time.
_INF: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|Inf\b')


def _infinity(token: re.Match[str]) -> str:
    return "Infinity" if token[0] == "Inf" else token[0]


_RAPIDJSON_WORDS: Final = {
    "Expecting value": "Invalid value.",
    "Expecting property name enclosed in double quotes": "Missing a name for object "
    "member.",
    "Expecting ':' delimiter": "Missing a colon after a name of object member.",
    "Unterminated string starting at": "Missing a closing quotation mark in string.",
    "Invalid control character at": "Invalid encoding in string.",
    "Invalid \\escape": "Invalid escape character in string.",
    "Invalid \\uXXXX escape": "Incorrect hex digit after \\u escape in string.",
}
"""What TensorFlow Serving says of syntax, by the standard library's words."""


def shown(value: Value) -> str:
    """Returns the beginning of a value, as JSON, for an error."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (RecursionError, TypeError):  # MessagePack may name members in bytes
        text = str(type_name(value))
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def type_name(value: Value) -> str:
    """Returns the name of a value's type, in TensorFlow Serving's words."""
    if type(value) is bool:
        return "True" if value else "False"
    return _TYPE_NAMES.get(type(value), type(value).__name__)


def wrong_form(value: Value, what: str) -> InvalidArgument:
    """Returns the error for a value of another form than was expected."""
    return InvalidArgument(f"JSON Value: {shown(value)} {what}")


def signature_name_of(document: dict[str, Value]) -> str:
    """Returns the signature that a request names; empty for the default one.

    Raises:
        InvalidArgument: It is no string.

    """
    name = document.get(SIGNATURE_NAME, "")
    if not isinstance(name, str):
        raise wrong_form(
            document,
            "not formatted correctly. 'signature_name' key must be a string value.",
        )
    return name
