"""A request that was answered, as logs see it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from tfs.codec.predict_response import Reply

PREDICT: Final = "Predict"
CLASSIFY: Final = "Classify"
REGRESS: Final = "Regress"
MULTI_INFERENCE: Final = "MultiInference"
METHODS: Final = (PREDICT, CLASSIFY, REGRESS, MULTI_INFERENCE)

Record: TypeAlias = Callable[[], tuple[bytes | memoryview, Reply]]
"""Makes the messages of the RPC that a request and its answer are, or would have been."""


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """A request that was answered, for logs. Immutable.

    Attributes:
        method: The RPC's name.
        model: The model that answered.
        version: Its version.
        signature: The signature's key; "" for several.
        num_bytes: How long the request was as it came.
        record: Makes its record; a log that keeps that has to copy it.

    """

    method: str
    model: str
    version: int
    signature: str
    num_bytes: int
    record: Record


RequestLog: TypeAlias = Callable[[AnsweredRequest], None]
"""Samples an answered request. Thread-safe, never blocks."""
