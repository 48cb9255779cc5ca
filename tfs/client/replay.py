"""Sends logged requests again and compares the answers with those logged.

Requests travel as they were logged, but for the model, version or label asked for
instead; answers are compared by value, floats within a tolerance, and the version that
answered is not part of the comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tfs.client.arrays import read_tensor
from tfs.client.requests import (
    CLASSIFY,
    MULTI_INFERENCE,
    PREDICT,
    REGRESS,
    Target,
)
from tfs.client.results import Array
from tfs.core.errors import InvalidArgument
from tfs.proto.tensorflow_serving.apis import (
    classification_pb2,
    inference_pb2,
    model_pb2,
    predict_pb2,
    prediction_log_pb2,
    regression_pb2,
)

_METHODS: Final = {
    "predict_log": PREDICT,
    "classify_log": CLASSIFY,
    "regress_log": REGRESS,
    "multi_inference_log": MULTI_INFERENCE,
}

Values = Mapping[str, Array]
"""The contents of an answer, by name."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One logged request and its answer. Immutable.

    Attributes:
        method: The RPC's path.
        request: Serialized, as it will be sent.
        response: Serialized, as it was answered then; None if that was not logged, as
            in warm-up files.

    """

    method: str
    request: bytes
    response: bytes | None


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far floats may be apart; infinitely far if asked. Immutable."""

    relative: float = 1e-5
    absolute: float = 1e-6

    def __post_init__(self) -> None:
        if not (self.relative >= 0 and self.absolute >= 0):  # also refuses NaN
            raise InvalidArgument(
                f"a tolerance must be at least 0: rtol {self.relative}, atol "
                f"{self.absolute}"
            )


@dataclass(frozen=True, slots=True)
class Difference:
    """How an output differs from the logged one. Immutable.

    Attributes:
        output: Its name.
        what: What is different, with the first place.
        largest: The largest difference of two numbers; None if they cannot be
            subtracted.

    """

    output: str
    what: str
    largest: float | None = None

    def __str__(self) -> str:
        """Returns a line for people."""
        between = " " if self.what.startswith("is ") else ": "
        return f"{self.output}{between}{self.what}"


def exchange_of(
    entry: prediction_log_pb2.PredictionLog, instead: Target | None = None
) -> Exchange | None:
    """Returns the exchange that an entry logs; None if it cannot be sent.

    Args:
        entry: An entry of a request log or a warm-up file.
        instead: The model to ask instead; an empty name leaves the logged one, and a
            version or label replaces both. The signature is always the logged one.

    """
    kind = entry.WhichOneof("log_type")
    if kind not in _METHODS:
        return None
    logged = getattr(entry, kind)
    if instead is not None:
        if kind == "multi_inference_log":
            specs = [task.model_spec for task in logged.request.tasks]
        else:
            specs = [logged.request.model_spec]
        for spec in specs:
            _redirect(spec, instead)
    return Exchange(
        _METHODS[kind],
        logged.request.SerializeToString(),
        logged.response.SerializeToString() if logged.HasField("response") else None,
    )


def differences(
    method: str, logged: bytes, answered: bytes, tolerance: Tolerance
) -> list[Difference]:
    """Returns which outputs of two answers differ, by name; nothing if none does."""
    before, after = values_of(method, logged), values_of(method, answered)
    found = []
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            found.append(Difference(name, "is missing"))
        elif name not in before:
            found.append(Difference(name, "is new"))
        else:
            differs = _difference(name, before[name], after[name], tolerance)
            found += [] if differs is None else [differs]
    return found


def values_of(method: str, response: bytes) -> Values:
    """Returns the contents of an answer, without which version gave it.

    Raises:
        InvalidArgument: An output of a dtype that numpy does not have.

    """
    if method == PREDICT:
        prediction = predict_pb2.PredictResponse.FromString(response)
        return {name: read_tensor(t, name) for name, t in prediction.outputs.items()}
    if method == CLASSIFY:
        classified = classification_pb2.ClassificationResponse.FromString(response)
        return _classes("", classified.result)
    if method == REGRESS:
        regressed = regression_pb2.RegressionResponse.FromString(response)
        return {"values": _values(regressed.result)}
    if method == MULTI_INFERENCE:
        found: dict[str, Array] = {}
        several = inference_pb2.MultiInferenceResponse.FromString(response)
        for result in several.results:
            name = f"{result.model_spec.signature_name} "
            if result.HasField("classification_result"):
                found.update(_classes(name, result.classification_result))
            else:
                found[f"{name}values"] = _values(result.regression_result)
        return found
    raise InvalidArgument(f"{method} has no answer to compare")


def _redirect(spec: model_pb2.ModelSpec, instead: Target) -> None:
    if instead.model:
        spec.name = instead.model
    if instead.version is not None:
        spec.version.value = instead.version
    elif instead.label is not None:
        spec.version_label = instead.label


def _classes(prefix: str, result: classification_pb2.ClassificationResult) -> Values:
    rows = [each.classes for each in result.classifications]
    labels: list[Sequence[str]] = [[one.label for one in row] for row in rows]
    scores = [[one.score for one in row] for row in rows]
    return {
        f"{prefix}labels": np.array([str(labels)], dtype=object),
        f"{prefix}scores": np.array(
            [score for row in scores for score in row], dtype=np.float32
        ),
    }


def _values(result: regression_pb2.RegressionResult) -> Array:
    return np.array([each.value for each in result.regressions], dtype=np.float32)


def _difference(
    name: str, before: Array, after: Array, tolerance: Tolerance
) -> Difference | None:
    if before.dtype != after.dtype:
        return Difference(name, f"dtype {after.dtype}, was {before.dtype}")
    if before.shape != after.shape:
        what = f"shape {list(after.shape)}, was {list(before.shape)}"
        return Difference(name, what)
    differs: Any = before != after
    if before.dtype.kind in "fc":
        differs = ~np.isclose(
            after, before, tolerance.relative, tolerance.absolute, equal_nan=True
        )
    num = int(np.count_nonzero(differs))
    if not num:
        return None
    at = int(np.argmax(differs))  # unlike nonzero, it takes scalars
    first = tuple(int(index) for index in np.unravel_index(at, before.shape))
    what = (
        f"{num} of {before.size} elements differ, first at {list(first)}: "
        f"{after[first]}, was {before[first]}"
    )
    return Difference(name, what, _largest(before, after))


def _largest(before: Array, after: Array) -> float | None:
    """Returns how far the elements are apart at most; infinity where one is no number."""
    if before.dtype.kind not in "iufc":
        return None
    wide = np.complex128 if before.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        apart = np.abs(after.astype(wide) - before.astype(wide))
    apart = np.where(
        np.isnan(apart) & ~(np.isnan(before) & np.isnan(after)), np.inf, apart
    )
    return float(np.nanmax(apart))
