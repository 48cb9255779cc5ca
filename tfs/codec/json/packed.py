"""Tensors in bodies that are not JSON: MessagePack, and NumPy's file format.

In MessagePack a tensor of numbers is a map ``{"dtype": "float32", "shape": [2, 3],
"data": <binary>}`` with little-endian elements in C order; lists of values may stand in
its place, and strings may be binary. ``application/x-npy`` is one tensor, and so for
signatures of one input, and of one output.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import msgpack
import numpy as np

from tfs.codec.json.document import Value, wrong_form
from tfs.codec.json.predict_body import INPUTS, INSTANCES, Layout, PredictBody
from tfs.codec.json.tensor_writer import OUTPUTS, nested_strings
from tfs.core.dtype import BFLOAT16, DTYPES, STRING, DType
from tfs.core.errors import InvalidArgument, Unimplemented
from tfs.core.tensor_view import Buffer, TensorView

_KEYS: Final = {"dtype", "shape", "data"}
_NPY_MAGIC: Final = b"\x93NUMPY"
_MAX_NPY_HEAD: Final = 4096


def parse_msgpack(body: Buffer) -> PredictBody:
    """Returns the request that a MessagePack document is. Thread-safe.

    Raises:
        InvalidArgument: It is malformed, or no such request.

    """
    try:
        document = msgpack.unpackb(body, strict_map_key=True)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        why = str(error) or "malformed, or nested too deep"
        raise InvalidArgument(f"MessagePack parse error: {why}") from None
    if type(document) is not dict:
        raise InvalidArgument("the MessagePack document is no map")
    for key in (INPUTS, INSTANCES):
        if key in document:
            document[key] = _unpacked(document[key])
    return PredictBody.of(document, has_bools=True)


def _unpacked(value: Value) -> Value:
    """Returns a value with TensorViews for its packed tensors."""
    if type(value) is dict:
        if value.keys() == _KEYS:
            return _tensor(value)
        return {name: _unpacked(each) for name, each in value.items()}
    return value


def _tensor(value: Mapping[str, Any]) -> TensorView:
    dtype = DTYPES.get(value["dtype"]) if isinstance(value["dtype"], str) else None
    shape, data = value["shape"], value["data"]
    if (
        dtype is None
        or dtype is STRING
        or not isinstance(shape, list)
        or not all(type(size) is int for size in shape)
        or not isinstance(data, bytes)
    ):
        raise wrong_form(
            {"dtype": str(value["dtype"]), "shape": shape},
            "is no tensor: its dtype is a name, its shape a list of sizes, its data "
            "binary; strings are lists",
        )
    try:
        return TensorView.checked(dtype, shape, data)
    except ValueError as error:
        raise InvalidArgument(str(error)) from None


def write_msgpack(tensors: Mapping[str, TensorView], key: str = OUTPUTS) -> bytes:
    """Returns a document in MessagePack: ``{key: {name: tensor}}``. Thread-safe."""
    packed: dict[str, Any] = {}
    for name, view in tensors.items():
        if view.dtype is STRING:
            packed[name] = nested_strings(view.strings, view.shape)
        else:
            packed[name] = {
                "dtype": view.dtype.name,
                "shape": list(view.shape),
                "data": bytes(view.buffer),
            }
    document: bytes = msgpack.packb({key: packed})
    return document


@lru_cache(256)
def msgpack_head(name: str, dtype: DType, shape: tuple[int, ...]) -> bytes:
    """Returns a reply of one tensor of numbers without its elements, with which it ends."""
    elements = bytes(dtype.item_bytes * math.prod(shape))
    whole = write_msgpack({name: TensorView(dtype, shape, elements)})
    return whole[: len(whole) - len(elements)]


def parse_npy(body: Buffer) -> PredictBody:
    """Returns the request that a ``.npy`` file is: one tensor, pointing into the body.

    Raises:
        InvalidArgument: It is no such file, or one of objects.

    """
    if bytes(body[:6]) != _NPY_MAGIC:
        raise InvalidArgument("the body is no .npy file")
    size_bytes = 2 if body[6:7] == b"\x01" else 4
    stop = 8 + size_bytes + int.from_bytes(body[8 : 8 + size_bytes], "little")
    numpys, shape, is_fortran = _npy_head(bytes(body[: min(stop, _MAX_NPY_HEAD)]))
    own = DTYPES.get(numpys.name)
    if own is None or own is STRING:
        raise InvalidArgument(
            f"a .npy file of {numpys} is not taken: send numbers or booleans"
        )
    try:
        view = TensorView.checked(own, shape, memoryview(body)[stop:])
    except ValueError as error:
        raise InvalidArgument(f"the .npy file: {error}") from None
    if is_fortran or numpys.byteorder == ">":
        array = np.frombuffer(view.buffer, numpys)
        array = array.reshape(shape, order="F" if is_fortran else "C")
        array = array.astype(numpys.newbyteorder("<"))
        view = TensorView(own, shape, array.tobytes("C"))
    return PredictBody("", Layout.COLUMNS, view, has_bools=False)


@lru_cache(256)  # clients repeat them, and numpy takes 30 us for one
def _npy_head(head: bytes) -> tuple[Any, tuple[int, ...], bool]:
    """Returns numpy's dtype, the shape, and whether columns come first."""
    file = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, is_fortran, dtype = read(file, max_header_size=_MAX_NPY_HEAD)
    except (ValueError, SyntaxError, RecursionError) as error:
        raise InvalidArgument(f"the .npy file has no readable head: {error}") from None
    return dtype, tuple(map(int, shape)), is_fortran  # numpy takes True for one


def write_npy(tensors: Mapping[str, TensorView]) -> tuple[bytes, Buffer]:
    """Returns the head and the elements of one tensor as a ``.npy`` file. Thread-safe.

    Raises:
        Unimplemented: There are several tensors, or its type is none of NumPy's.

    """
    if len(tensors) != 1:
        raise Unimplemented(
            f"a .npy file holds one tensor, not {len(tensors)}; application/msgpack and "
            "application/json hold more"
        )
    (view,) = tensors.values()
    return npy_head(view.dtype, view.shape), view.buffer


@lru_cache(256)
def npy_head(dtype: DType, shape: tuple[int, ...]) -> bytes:
    """Returns what stands before the elements in a ``.npy`` file.

    Raises:
        Unimplemented: The type is none of NumPy's.

    """
    if dtype is STRING or dtype is BFLOAT16 or dtype.name.startswith("float8"):
        raise Unimplemented(f"NumPy has no {dtype.name}; application/msgpack has")
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head,
        {
            "descr": np.lib.format.dtype_to_descr(np.dtype(dtype.name)),
            "fortran_order": False,
            "shape": shape,
        },
    )
    return head.getvalue()
