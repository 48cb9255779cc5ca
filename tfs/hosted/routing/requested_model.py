"""Reads the name of the model from a request's bytes, and nothing else."""

from __future__ import annotations

from typing import Final

from tfs.codec import wire
from tfs.codec.model_spec import merged_model_spec, read_model_spec
from tfs.core.errors import InvalidArgument

MULTI_INFERENCE: Final = "/tensorflow.serving.PredictionService/MultiInference"

# Field number in all requests but MultiInference's, whose tasks have one each, and those
# of the Open Inference Protocol, where this field is the name itself.
_MODEL_SPEC: Final = 1
_TASKS: Final = 1


def requested_model(method: str, message: bytes | memoryview) -> str:
    """Returns the model's name.

    Raises:
        InvalidArgument: The request names none, or cannot be read up to there.

    """
    try:
        parts = _delimited(message, 0, len(message), _MODEL_SPEC)
        if method == MULTI_INFERENCE and parts:
            start, stop = parts[0]  # every task is of the same model
            parts = _delimited(message, start, stop, _TASKS)
    except wire.MalformedError as error:
        raise InvalidArgument(f"cannot parse the request: {error}") from error
    texts = [bytes(message[start:stop]) for start, stop in parts]
    if method.startswith("/inference."):
        name = texts[-1].decode("utf-8", "replace") if texts else ""
        if not name:
            raise InvalidArgument("the request names no model")
        return name
    spec = read_model_spec(texts[0]) if len(texts) == 1 else merged_model_spec(texts)
    if not spec.name:
        raise InvalidArgument("Missing ModelSpec: the request names no model")
    return spec.name


def _delimited(
    message: bytes | memoryview, start: int, stop: int, wanted: int
) -> list[tuple[int, int]]:
    return [
        (first, last)
        for number, kind, first, last in wire.fields(message, start, stop)
        if number == wanted and kind == wire.DELIMITED
    ]
