"""How long the tensors of a short request are, without decoding it.

One value may stand for all elements of a tensor. So forty bytes may ask for an answer
of ten megabytes, and a transport that limits unread answers wants to know before it is
computed.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from tfs.codec.tensor import MAX_DIMENSIONS
from tfs.codec.wire_type import BY_NUMBER
from tfs.core.tensor_view import Buffer
from tfs.proto.tensorflow_serving.apis import predict_pb2

_MOST_BYTES: Final = 1 << 40  # no request may claim more; products stay short numbers


def claimed_bytes(message: Buffer) -> int:
    """Returns how many bytes the tensors of a PredictRequest have when it is decoded.

    Meant for requests of some kilobytes, which take microseconds. Strings count as
    nothing. Returns 0 for what is no valid request, which is refused when it is decoded.

    Args:
        message: The request.

    """
    try:
        request = predict_pb2.PredictRequest.FromString(bytes(message))
    except DecodeError:
        return 0
    num_bytes = 0
    for tensor in request.inputs.values():
        dims = tensor.tensor_shape.dim
        kind = BY_NUMBER.get(tensor.dtype)
        if kind is None or len(dims) > MAX_DIMENSIONS:
            return 0
        claimed = kind.dtype.item_bytes
        for dim in dims:
            if dim.size < 0 or claimed > _MOST_BYTES:
                return 0
            claimed *= dim.size
        num_bytes += claimed
    return num_bytes
