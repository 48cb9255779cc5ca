"""How each dtype travels in a TensorProto."""

from __future__ import annotations

from typing import Final

from tfs.codec import wire
from tfs.core import dtype as dtypes
from tfs.core.dtype import STRING, DType
from tfs.core.errors import InvalidArgument
from tfs.proto.tensorflow.core.framework import tensor_pb2, types_pb2


class WireType:
    """How a dtype travels. One instance per dtype. Immutable.

    Attributes:
        dtype: The element type.
        number: Its ``tensorflow.DataType``.
        field: Name of its typed field.
        field_number: Number of that field.
        is_raw: Whether the packed contents of that field are the elements' own bytes.
        code: The code of ``struct`` for elements that are not raw; empty for strings.

    """

    def __init__(
        self, dtype: DType, number: int, field: str, code: str, *, is_raw: bool
    ) -> None:
        self.dtype = dtype
        self.number = number
        self.field = field
        self.field_number: int = tensor_pb2.TensorProto.DESCRIPTOR.fields_by_name[
            field
        ].number
        self.is_raw = is_raw
        self.code = code
        self.typed_tag = wire.tag(self.field_number, wire.DELIMITED)
        self.content_tag = wire.tag(_CONTENT_FIELD, wire.DELIMITED)


_CONTENT_FIELD: Final = 4

_RAW = (
    (dtypes.FLOAT32, types_pb2.DT_FLOAT, "float_val"),
    (dtypes.FLOAT64, types_pb2.DT_DOUBLE, "double_val"),
    (dtypes.COMPLEX64, types_pb2.DT_COMPLEX64, "scomplex_val"),
    (dtypes.COMPLEX128, types_pb2.DT_COMPLEX128, "dcomplex_val"),
    (dtypes.FLOAT8_E5M2, types_pb2.DT_FLOAT8_E5M2, "float8_val"),
    (dtypes.FLOAT8_E4M3FN, types_pb2.DT_FLOAT8_E4M3FN, "float8_val"),
    (dtypes.FLOAT8_E4M3FNUZ, types_pb2.DT_FLOAT8_E4M3FNUZ, "float8_val"),
    (dtypes.FLOAT8_E5M2FNUZ, types_pb2.DT_FLOAT8_E5M2FNUZ, "float8_val"),
)
_VARINT = (
    (dtypes.INT8, types_pb2.DT_INT8, "int_val", "b"),
    (dtypes.INT16, types_pb2.DT_INT16, "int_val", "h"),
    (dtypes.INT32, types_pb2.DT_INT32, "int_val", "i"),
    (dtypes.INT64, types_pb2.DT_INT64, "int64_val", "q"),
    (dtypes.UINT8, types_pb2.DT_UINT8, "int_val", "B"),
    (dtypes.UINT16, types_pb2.DT_UINT16, "int_val", "H"),
    (dtypes.UINT32, types_pb2.DT_UINT32, "uint32_val", "I"),
    (dtypes.UINT64, types_pb2.DT_UINT64, "uint64_val", "Q"),
    (dtypes.BOOL, types_pb2.DT_BOOL, "bool_val", "?"),
    # The bit pattern in the low 16 bits.
    (dtypes.FLOAT16, types_pb2.DT_HALF, "half_val", "H"),
    (dtypes.BFLOAT16, types_pb2.DT_BFLOAT16, "half_val", "H"),
)

BY_DTYPE: Final[dict[DType, WireType]] = {
    STRING: WireType(STRING, types_pb2.DT_STRING, "string_val", "", is_raw=False),
    **{d: WireType(d, n, field, "", is_raw=True) for d, n, field in _RAW},
    **{d: WireType(d, n, field, code, is_raw=False) for d, n, field, code in _VARINT},
}
BY_NUMBER: Final[dict[int, WireType]] = {
    each.number: each for each in BY_DTYPE.values()
}


def wire_type(number: int) -> WireType:
    """Returns how the ``tensorflow.DataType`` travels.

    Raises:
        InvalidArgument: It is not one that is served; names it.

    """
    try:
        return BY_NUMBER[number]
    except KeyError:
        try:
            name = types_pb2.DataType.Name(number)
        except ValueError:
            name = str(number)
        raise InvalidArgument(f"dtype {name} is not supported") from None
