"""Writes a ``PredictRequest``, for logs of requests that came in another form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfs.codec import wire
from tfs.codec.model_spec import ModelSpec, write_model_spec
from tfs.codec.tensor import write_tensor
from tfs.core.tensor_view import TensorView


def write_predict_request(
    spec: ModelSpec, inputs: Mapping[str, TensorView], output_filter: Sequence[str] = ()
) -> bytes:
    """Returns the serialized request. Thread-safe."""
    fields = [wire.delimited(1, write_model_spec(spec))]
    for name, view in inputs.items():
        tensor = write_tensor(view, as_tensor_content=True)
        entry = wire.delimited(1, name.encode()) + wire.delimited(2, tensor)
        fields.append(wire.delimited(2, entry))
    fields += [wire.delimited(3, name.encode()) for name in output_filter]
    return b"".join(fields)
