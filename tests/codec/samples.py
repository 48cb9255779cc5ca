"""Tensors of every dtype, with values that tell encodings apart."""

from __future__ import annotations

import struct

from tfs.core import dtype as dtypes
from tfs.core.dtype import STRING, DType
from tfs.core.tensor_view import TensorView
from tfs.proto.tensorflow.core.framework import tensor_pb2
from tfs.proto.tensorflow_serving.apis import predict_pb2

# Six elements each: extremes, a signalling NaN where there is one, zero, and small.
DATA: dict[DType, bytes | tuple[bytes, ...]] = {
    dtypes.FLOAT32: struct.pack("<6I", 0x7F800001, 0xFFFFFFFF, 0x80000000, 0, 1, 2),
    dtypes.FLOAT64: struct.pack("<6Q", 0x7FF0000000000001, 1 << 63, 0, 1, 2, 3),
    dtypes.FLOAT16: struct.pack("<6H", 0xFFFF, 0x7C01, 0x8000, 0, 127, 128),
    dtypes.BFLOAT16: struct.pack("<6H", 0xFFFF, 0x7F81, 0x8000, 0, 1, 300),
    dtypes.INT8: struct.pack("<6b", -128, 127, -1, 0, 1, 2),
    dtypes.INT16: struct.pack("<6h", -(1 << 15), (1 << 15) - 1, -1, 0, 1, 300),
    dtypes.INT32: struct.pack("<6i", -(1 << 31), (1 << 31) - 1, -1, 0, 1, 300),
    dtypes.INT64: struct.pack("<6q", -(1 << 63), (1 << 63) - 1, -1, 0, 1, 300),
    dtypes.UINT8: struct.pack("<6B", 255, 128, 127, 0, 1, 2),
    dtypes.UINT16: struct.pack("<6H", (1 << 16) - 1, 128, 127, 0, 1, 300),
    dtypes.UINT32: struct.pack("<6I", (1 << 32) - 1, 128, 127, 0, 1, 300),
    dtypes.UINT64: struct.pack("<6Q", (1 << 64) - 1, 128, 127, 0, 1, 300),
    dtypes.BOOL: bytes([1, 0, 1, 1, 0, 0]),
    dtypes.COMPLEX64: struct.pack("<12I", 0x7F800001, *range(11)),
    dtypes.COMPLEX128: struct.pack("<12Q", 0x7FF0000000000001, *range(11)),
    dtypes.FLOAT8_E5M2: bytes([255, 128, 127, 0, 1, 2]),
    dtypes.FLOAT8_E4M3FN: bytes([255, 128, 127, 0, 1, 2]),
    dtypes.FLOAT8_E4M3FNUZ: bytes([255, 128, 127, 0, 1, 2]),
    dtypes.FLOAT8_E5M2FNUZ: bytes([255, 128, 127, 0, 1, 2]),
    STRING: (b"", b"a", b"\xff\x00", b"b" * 300, b"c", b"d"),
}

VIEWS = [TensorView(dtype, (2, 3), data) for dtype, data in DATA.items()]

# One-byte varints only: the elements a fast path widens.
SMALL_VIEWS = [
    TensorView(dtype, (6,), struct.pack(f"<6{code}", 0, 1, 1, 0, 1, 0))
    for dtype, code in {
        dtypes.INT8: "b",
        dtypes.INT16: "h",
        dtypes.INT32: "i",
        dtypes.INT64: "q",
        dtypes.UINT8: "B",
        dtypes.UINT16: "H",
        dtypes.UINT32: "I",
        dtypes.UINT64: "Q",
        dtypes.BOOL: "B",
        dtypes.FLOAT16: "H",
        dtypes.BFLOAT16: "H",
    }.items()
]

# DataType and typed field by dtype, from TensorFlow's documentation of TensorProto.
FIELDS = {
    dtypes.FLOAT32: (1, "float_val", "f"),
    dtypes.FLOAT64: (2, "double_val", "d"),
    dtypes.INT32: (3, "int_val", "i"),
    dtypes.UINT8: (4, "int_val", "B"),
    dtypes.INT16: (5, "int_val", "h"),
    dtypes.INT8: (6, "int_val", "b"),
    STRING: (7, "string_val", ""),
    dtypes.COMPLEX64: (8, "scomplex_val", "f"),
    dtypes.INT64: (9, "int64_val", "q"),
    dtypes.BOOL: (10, "bool_val", "?"),
    dtypes.BFLOAT16: (14, "half_val", "H"),
    dtypes.UINT16: (17, "int_val", "H"),
    dtypes.COMPLEX128: (18, "dcomplex_val", "d"),
    dtypes.FLOAT16: (19, "half_val", "H"),
    dtypes.UINT32: (22, "uint32_val", "I"),
    dtypes.UINT64: (23, "uint64_val", "Q"),
    dtypes.FLOAT8_E5M2: (24, "float8_val", ""),
    dtypes.FLOAT8_E4M3FN: (25, "float8_val", ""),
    dtypes.FLOAT8_E4M3FNUZ: (26, "float8_val", ""),
    dtypes.FLOAT8_E5M2FNUZ: (28, "float8_val", ""),
}


FLOATS = TensorView(dtypes.FLOAT32, (1, 4), struct.pack("<4f", 1, 2, 3, 4))


def typed_proto(view: TensorView) -> tensor_pb2.TensorProto:
    """Builds the message value by value, independently of the code under test."""
    number, field, code = FIELDS[view.dtype]
    proto = tensor_pb2.TensorProto()
    proto.dtype = number  # type: ignore[assignment]
    proto.tensor_shape.SetInParent()
    for size in view.shape:
        proto.tensor_shape.dim.add(size=size)
    if isinstance(view.data, tuple):
        proto.string_val.extend(view.data)
    elif field == "float8_val":
        proto.float8_val = bytes(view.data)
    elif code in ("f", "d"):
        # Packed by hand: Python floats would quieten signalling NaNs.
        tag = bytes(
            [tensor_pb2.TensorProto.DESCRIPTOR.fields_by_name[field].number << 3 | 2]
        )
        assert len(view.data) < 128
        proto.MergeFromString(tag + bytes([len(view.data)]) + bytes(view.data))
    else:
        num = len(view.data) // struct.calcsize(code)
        getattr(proto, field).extend(struct.unpack(f"<{num}{code}", view.data))
    return proto


def content_proto(view: TensorView) -> tensor_pb2.TensorProto:
    """Builds the message with the elements in ``tensor_content``."""
    number, _, _ = FIELDS[view.dtype]
    proto = tensor_pb2.TensorProto()
    proto.dtype = number  # type: ignore[assignment]
    for size in view.shape:
        proto.tensor_shape.dim.add(size=size)
    assert not isinstance(view.data, tuple)
    proto.tensor_content = bytes(view.data)
    return proto


def request(
    *protos: tensor_pb2.TensorProto, name: str = "m", **more: object
) -> predict_pb2.PredictRequest:
    """Builds a request whose inputs are called x0, x1 and so on."""
    message = predict_pb2.PredictRequest(**more)  # type: ignore[arg-type]
    message.model_spec.name = name
    for index, proto in enumerate(protos):
        message.inputs[f"x{index}"].CopyFrom(proto)
    return message
