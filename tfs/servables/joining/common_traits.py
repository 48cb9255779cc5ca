"""What the requests of a queue have in common, in words.

A signature has several queues if its requests differ in what keeps them apart: sizes,
inputs left out, values that stand for all rows. Without these words, their lines look
alike.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from tfs.core.dtype import DType
from tfs.core.signature import FREE, Signature

ANY_LENGTH: Final = -1
"""A size that requests of a queue need not have in common."""

_CODES: Final = {
    "float16": "e", "float32": "f", "float64": "d", "bool": "?",
    "int8": "b", "int16": "h", "int32": "i", "int64": "q",
    "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q",
}  # fmt: skip
_MAX_VALUES: Final = 4
_MAX_CHARS: Final = 24


def traits_of(key: object, signature: Signature) -> str:
    """Returns in words what a key of ``SignatureQueues`` says; "" if it says nothing.

    Inputs of which all requests have the same are not named.
    """
    if not isinstance(key, frozenset):
        return ""
    return ", ".join(sorted(filter(None, _traits(key, signature))))


def _traits(key: frozenset[object], signature: Signature) -> Iterator[str]:
    for part in key:
        match part:
            case (str(name), None):
                yield f"{name} left out"
            case (str(name), sizes, data) if isinstance(sizes, tuple):
                yield f"{name} = {_values(signature.inputs[name].dtype, data)}"
            case (str(name), sizes) if isinstance(sizes, tuple):
                spec = signature.inputs[name]
                if FREE in spec.shape[1:] or name in signature.defaults:
                    yield f"{name} [{', '.join(map(_size, sizes))}]"


def _size(size: int) -> str:
    return "any" if size == ANY_LENGTH else str(size)


def _values(dtype: DType, data: object) -> str:
    values: Sequence[object]
    if isinstance(data, tuple):
        values = [bytes(each).decode(errors="replace") for each in data[:_MAX_VALUES]]
        num = len(data)
    else:
        assert isinstance(data, bytes)
        code = _CODES.get(dtype.name)
        if code is None:
            return _short(data.hex())
        num = len(data) // dtype.item_bytes
        kept = data[: _MAX_VALUES * dtype.item_bytes]
        values = struct.unpack(f"<{len(kept) // dtype.item_bytes}{code}", kept)
    texts = [f"{v:.6g}" if isinstance(v, float) else _short(str(v)) for v in values]
    return " ".join([*texts, "..."] if num > _MAX_VALUES else texts)


def _short(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}..."
