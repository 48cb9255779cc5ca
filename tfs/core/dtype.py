"""Element types of tensors, by the names manifests and signatures use."""

from __future__ import annotations

from typing import Final


class DType:
    """An element type. One instance per type: compare with ``is``. Immutable.

    Attributes:
        name: The name in manifests and in torch ("float32", "bfloat16", "string").
        item_bytes: Size of one element; 0 for strings, which vary.
        code: What the module struct calls it; "" if it does not know it.

    """

    __slots__ = ("code", "item_bytes", "name")

    def __init__(self, name: str, item_bytes: int, code: str = "") -> None:
        self.name = name
        self.item_bytes = item_bytes
        self.code = code

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, ...]:
        return dtype, (self.name,)


FLOAT32: Final = DType("float32", 4, "f")
FLOAT64: Final = DType("float64", 8, "d")
FLOAT16: Final = DType("float16", 2, "e")
BFLOAT16: Final = DType("bfloat16", 2)
INT8: Final = DType("int8", 1, "b")
INT16: Final = DType("int16", 2, "h")
INT32: Final = DType("int32", 4, "i")
INT64: Final = DType("int64", 8, "q")
UINT8: Final = DType("uint8", 1, "B")
UINT16: Final = DType("uint16", 2, "H")
UINT32: Final = DType("uint32", 4, "I")
UINT64: Final = DType("uint64", 8, "Q")
BOOL: Final = DType("bool", 1, "?")
COMPLEX64: Final = DType("complex64", 8)
COMPLEX128: Final = DType("complex128", 16)
FLOAT8_E5M2: Final = DType("float8_e5m2", 1)
FLOAT8_E4M3FN: Final = DType("float8_e4m3fn", 1)
FLOAT8_E4M3FNUZ: Final = DType("float8_e4m3fnuz", 1)
FLOAT8_E5M2FNUZ: Final = DType("float8_e5m2fnuz", 1)
STRING: Final = DType("string", 0)

DTYPES: Final[dict[str, DType]] = {
    each.name: each for each in list(globals().values()) if isinstance(each, DType)
}


def dtype(name: str) -> DType:
    """Returns the type called ``name``.

    Raises:
        ValueError: There is none; the message lists those there are.

    """
    try:
        return DTYPES[name]
    except KeyError:
        raise ValueError(
            f"unknown dtype {name!r}; known: {', '.join(DTYPES)}"
        ) from None
