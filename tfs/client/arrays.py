"""numpy arrays (or nested lists) to TensorProto and back."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tfs.client.results import Array
from tfs.core.errors import InvalidArgument
from tfs.proto.tensorflow.core.framework import tensor_pb2, types_pb2

_NUMPY: Final[dict[int, np.dtype[Any]]] = {
    types_pb2.DT_FLOAT: np.dtype("<f4"),
    types_pb2.DT_DOUBLE: np.dtype("<f8"),
    types_pb2.DT_INT32: np.dtype("<i4"),
    types_pb2.DT_UINT8: np.dtype("u1"),
    types_pb2.DT_INT16: np.dtype("<i2"),
    types_pb2.DT_INT8: np.dtype("i1"),
    types_pb2.DT_COMPLEX64: np.dtype("<c8"),
    types_pb2.DT_INT64: np.dtype("<i8"),
    types_pb2.DT_BOOL: np.dtype("?"),
    types_pb2.DT_UINT16: np.dtype("<u2"),
    types_pb2.DT_COMPLEX128: np.dtype("<c16"),
    types_pb2.DT_HALF: np.dtype("<f2"),
    types_pb2.DT_UINT32: np.dtype("<u4"),
    types_pb2.DT_UINT64: np.dtype("<u8"),
}
_WIRE_BY_NAME: Final = {
    "bfloat16": types_pb2.DT_BFLOAT16,
    "float8_e5m2": types_pb2.DT_FLOAT8_E5M2,
    "float8_e4m3fn": types_pb2.DT_FLOAT8_E4M3FN,
    "float8_e4m3fnuz": types_pb2.DT_FLOAT8_E4M3FNUZ,
    "float8_e5m2fnuz": types_pb2.DT_FLOAT8_E5M2FNUZ,
}
"""Types that numpy has from the package ml_dtypes only."""

_WIRE: Final = {dtype: number for number, dtype in _NUMPY.items()}
_TYPED_FIELD: Final = {
    types_pb2.DT_FLOAT: "float_val",
    types_pb2.DT_DOUBLE: "double_val",
    types_pb2.DT_INT32: "int_val",
    types_pb2.DT_UINT8: "int_val",
    types_pb2.DT_INT16: "int_val",
    types_pb2.DT_INT8: "int_val",
    types_pb2.DT_UINT16: "int_val",
    types_pb2.DT_INT64: "int64_val",
    types_pb2.DT_BOOL: "bool_val",
    types_pb2.DT_UINT32: "uint32_val",
    types_pb2.DT_UINT64: "uint64_val",
    types_pb2.DT_COMPLEX64: "scomplex_val",
    types_pb2.DT_COMPLEX128: "dcomplex_val",
    types_pb2.DT_HALF: "half_val",
}


def fill_tensor(tensor: tensor_pb2.TensorProto, value: object, name: str) -> None:
    """Writes an array, a number, a string or nested lists of them into ``tensor``.

    Python floats become float32 and Python ints int64, as models expect far more
    often than numpy's own defaults; pass an array to choose.

    Raises:
        InvalidArgument: Ragged lists, or a dtype that has no wire form.

    """
    array = _as_array(value, name)
    for size in array.shape:
        tensor.tensor_shape.dim.add(size=size)
    if array.dtype.kind in "OSU":
        tensor.dtype = types_pb2.DT_STRING
        tensor.string_val.extend(_as_bytes(item, name) for item in array.ravel())
        return
    little = array.dtype.newbyteorder("<")
    number = _WIRE.get(little, _WIRE_BY_NAME.get(array.dtype.name))
    if number is None:
        raise InvalidArgument(f"input {name!r}: dtype {array.dtype} cannot be sent")
    tensor.dtype = number  # type: ignore[assignment]  # the enum's int
    tensor.tensor_content = np.ascontiguousarray(array, dtype=little).tobytes()


def read_tensor(tensor: tensor_pb2.TensorProto, name: str) -> Array:
    """Returns the array, from raw content or typed fields, the last value repeated.

    bfloat16, which numpy does not have, comes as the same numbers in float32.

    Raises:
        InvalidArgument: A dtype numpy does not have, or contents that do not fit.

    """
    shape = tuple(dim.size for dim in tensor.tensor_shape.dim)
    size = int(np.prod(shape, dtype=np.int64))
    if tensor.dtype == types_pb2.DT_STRING:
        strings = np.empty(size, dtype=object)
        given = list(tensor.string_val)[:size]
        strings[: len(given)] = given
        strings[len(given) :] = given[-1] if given else b""
        return strings.reshape(shape)
    if tensor.dtype == types_pb2.DT_BFLOAT16:
        halves = tensor_pb2.TensorProto()
        halves.CopyFrom(tensor)
        halves.dtype = types_pb2.DT_UINT16
        halves.int_val.extend(halves.half_val)
        wide = read_tensor(halves, name).astype("<u4") << 16
        return wide.view("<f4")
    dtype = _NUMPY.get(tensor.dtype)
    if dtype is None:
        known = types_pb2.DataType.Name(tensor.dtype)
        raise InvalidArgument(f"output {name!r}: numpy has no {known}")
    if tensor.tensor_content:
        flat = np.frombuffer(tensor.tensor_content, dtype=dtype)
        if flat.size != size:
            raise InvalidArgument(f"output {name!r}: content does not fit {shape}")
        return flat.reshape(shape).copy()
    values = getattr(tensor, _TYPED_FIELD[tensor.dtype])
    if tensor.dtype == types_pb2.DT_HALF:
        flat = np.array(values, dtype="<u2").view("<f2")
    elif dtype.kind == "c":
        parts = np.array(values, dtype=dtype.type(0).real.dtype)
        flat = parts.view(dtype)
    else:
        flat = np.array(values, dtype=dtype)
    flat = flat[:size]
    if flat.size < size:
        last = flat[-1] if flat.size else dtype.type(0)
        flat = np.concatenate([flat, np.full(size - flat.size, last, dtype=dtype)])
    return flat.reshape(shape)


def _as_array(value: object, name: str) -> Array:
    if isinstance(value, np.ndarray):
        return value
    try:
        try:
            array = np.asarray(value)
        except UnicodeDecodeError:  # text beside bytes that are not text
            array = np.asarray(value, dtype=object)
    except ValueError as error:
        raise InvalidArgument(f"input {name!r}: {error}") from error
    if array.dtype == np.float64 and not isinstance(value, np.generic):
        return array.astype(np.float32)
    return array


def _as_bytes(item: object, name: str) -> bytes:
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, bytes):
        return item
    raise InvalidArgument(f"input {name!r}: {type(item).__name__} cannot be sent")
