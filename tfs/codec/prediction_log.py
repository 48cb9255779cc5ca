"""``PredictionLog``: the entry of a request log for one answered request.

Request and response are included as the bytes that travelled; nothing is parsed.
"""

from __future__ import annotations

from typing import Final

from tfs.codec import wire
from tfs.codec.model_spec import ModelSpec, write_model_spec
from tfs.proto.tensorflow_serving.apis import logging_pb2

FIELD_BY_METHOD: Final = {
    "Classify": 2,
    "Regress": 3,
    "MultiInference": 4,
    "Predict": 6,
}
"""The member of ``log_type`` for each RPC."""

_TAGS: Final = ("serve",)
"""How TensorFlow Serving tags what it serves; readers of its logs may select by that."""


def write_prediction_log(
    method: str,
    spec: ModelSpec,
    timestamp_s: int,
    sampling_rate: float,
    request: bytes,
    response: bytes,
) -> bytes:
    """Returns the serialized log entry. Thread-safe.

    Args:
        method: A key of :data:`FIELD_BY_METHOD`.
        spec: Which version and signature answered.
        timestamp_s: When, in seconds since the epoch.
        sampling_rate: Which share of the requests is logged, 0 to 1.
        request: The request as it was received.
        response: The reply as it was sent.

    """
    metadata = logging_pb2.LogMetadata(
        timestamp_secs=timestamp_s, saved_model_tags=_TAGS
    )
    metadata.sampling_config.sampling_rate = sampling_rate
    metadata.model_spec.ParseFromString(write_model_spec(spec))
    heads = [
        wire.tag(number, wire.DELIMITED) + wire.varint(len(part))
        for number, part in ((1, request), (2, response))
    ]
    size = sum(map(len, heads)) + len(request) + len(response)
    # Joined once: other threads go on while Python does that.
    return b"".join(
        (
            wire.delimited(1, metadata.SerializeToString()),
            wire.tag(FIELD_BY_METHOD[method], wire.DELIMITED) + wire.varint(size),
            heads[0],
            request,
            heads[1],
            response,
        )
    )
