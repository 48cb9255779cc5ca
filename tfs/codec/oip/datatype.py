"""The protocol's names of element types, and raw tensors as it sends them."""

from __future__ import annotations

import contextlib
import struct
from typing import Final

from tfs.codec.decode_options import FillBudget
from tfs.codec.tensor import are_bools, check_empty, check_strings, count_elements
from tfs.core import dtype as dtypes
from tfs.core.dtype import BOOL, STRING, DType
from tfs.core.errors import InvalidArgument, Unimplemented
from tfs.core.tensor_view import Buffer, TensorView

DATATYPES: Final[dict[DType, str]] = {
    dtypes.BOOL: "BOOL",
    dtypes.UINT8: "UINT8",
    dtypes.UINT16: "UINT16",
    dtypes.UINT32: "UINT32",
    dtypes.UINT64: "UINT64",
    dtypes.INT8: "INT8",
    dtypes.INT16: "INT16",
    dtypes.INT32: "INT32",
    dtypes.INT64: "INT64",
    dtypes.FLOAT16: "FP16",
    dtypes.BFLOAT16: "BF16",
    dtypes.FLOAT32: "FP32",
    dtypes.FLOAT64: "FP64",
    dtypes.STRING: "BYTES",
}
_DTYPES: Final = {name: dtype for dtype, name in DATATYPES.items()}

_LENGTH: Final = struct.Struct("<I")


def dtype_of(datatype: str) -> DType:
    """Returns the element type of that name.

    Raises:
        InvalidArgument: The protocol has none.

    """
    dtype = _DTYPES.get(datatype)
    if dtype is None:
        raise InvalidArgument(
            f"no datatype {datatype[:64]!r}; there are {', '.join(_DTYPES)}"
        )
    return dtype


def datatype_of(name: str, dtype: DType) -> str:
    """Returns the protocol's name of a tensor's element type.

    Raises:
        Unimplemented: It has none.

    """
    datatype = DATATYPES.get(dtype)
    if datatype is None:
        raise Unimplemented(
            f"{name!r} is {dtype}, for which the Open Inference Protocol has no "
            "datatype; ask by Predict"
        )
    return datatype


def read_raw(
    dtype: DType, shape: tuple[int, ...], data: Buffer, budget: FillBudget
) -> TensorView:
    """Returns the tensor whose raw contents these are; numbers borrow them.

    Raises:
        InvalidArgument: They do not fill the shape.
        ResourceExhausted: They would take far more memory than they did on the wire.

    """
    num_elements = count_elements(shape)
    if not num_elements:
        check_empty(dtype, shape, budget)
    if dtype is STRING:
        return TensorView(STRING, shape, _split(shape, num_elements, data, budget))
    if len(data) != num_elements * dtype.item_bytes:
        raise InvalidArgument(
            f"{len(data)} bytes of raw contents; {DATATYPES[dtype]} {list(shape)} "
            f"takes {num_elements * dtype.item_bytes}"
        )
    if dtype is BOOL and not are_bools(data):
        raise InvalidArgument("a BOOL that is neither 0 nor 1")
    return TensorView(dtype, shape, data)


def _split(
    shape: tuple[int, ...], num_elements: int, data: Buffer, budget: FillBudget
) -> tuple[bytes, ...]:
    """Reads strings, each behind its length of four bytes."""
    strings: list[bytes] = []
    stop = 0
    if num_elements * _LENGTH.size <= len(data):
        check_strings(num_elements, len(data), budget)
        content = bytes(data)
        with contextlib.suppress(struct.error):  # there is no length any more
            for _ in range(num_elements):
                start = stop + _LENGTH.size
                stop = start + _LENGTH.unpack_from(content, stop)[0]
                strings.append(content[start:stop])
    if len(strings) != num_elements or stop != len(data):
        raise InvalidArgument(
            f"the raw contents are not the strings of BYTES {list(shape)}, each behind "
            "its length in four bytes, the lowest first"
        )
    return tuple(strings)


def raw_contents(view: TensorView) -> bytes | memoryview:
    """Returns a tensor's raw contents, which nobody will change."""
    data = view.data
    if isinstance(data, tuple):
        return b"".join(
            [part for each in data for part in (_LENGTH.pack(len(each)), each)]
        )
    if isinstance(data, bytes) or (isinstance(data, memoryview) and data.readonly):
        return data
    return bytes(data)
