"""What a client gets back. All immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Prediction:
    """The outputs of one Predict.

    Attributes:
        outputs: Arrays by output name; strings are object arrays of bytes.
        model: The model's name as the server gives it.
        version: The version that answered; None if the server does not say.
        signature: The signature that was run.

    """

    outputs: Mapping[str, Array]
    model: str
    version: int | None
    signature: str


@dataclass(frozen=True, slots=True)
class Label:
    """One class of a classified example."""

    label: str
    score: float


@dataclass(frozen=True, slots=True)
class Classification:
    """The classes of each example, in the order the examples were sent."""

    examples: tuple[tuple[Label, ...], ...]
    model: str
    version: int | None


@dataclass(frozen=True, slots=True)
class Regression:
    """One value an example: float32 [num_examples]."""

    values: npt.NDArray[np.float32]
    model: str
    version: int | None


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Dtype name ("float32") and shape of a tensor; -1 is free."""

    dtype: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class SignatureInfo:
    """One signature as the server describes it.

    Attributes:
        method: TensorFlow Serving's name of it, "tensorflow/serving/predict".
        inputs: By name.
        outputs: By name.
        optional: Inputs that may be left out, because the server knows what they are
            then.

    """

    method: str
    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo]
    optional: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """A version's signatures by key."""

    model: str
    version: int | None
    signatures: Mapping[str, SignatureInfo]


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """One version's state: "AVAILABLE", "LOADING", ..., and what went wrong, if."""

    version: int
    state: str
    error_code: str
    error_message: str
