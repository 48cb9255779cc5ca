"""Signatures that several tests look at."""

from __future__ import annotations

from tfs.core.dtype import DTYPES, FLOAT32, STRING
from tfs.core.signature import (
    ExampleSlot,
    FeatureKind,
    FeatureSpec,
    Method,
    Signature,
    TensorSpec,
)
from tfs.core.tensor_view import TensorView


def zeros(*shape: int) -> TensorView:
    num = 1
    for size in shape:
        num *= size
    return TensorView(FLOAT32, shape, bytes(4 * num))


X = TensorSpec(FLOAT32, (-1, 3))
Y = TensorSpec(FLOAT32, (-1,))

SIGNATURE = Signature(Method.PREDICT, {"x": X}, {"y": Y})

TWO_INPUTS = Signature(
    Method.PREDICT,
    {"x": X, "t": TensorSpec(FLOAT32, (-1,))},
    {"y": Y},
    defaults={"t": zeros(1)},
)

FULL = Signature(
    method=Method.CLASSIFY,
    inputs={
        "x": TensorSpec(FLOAT32, (-1, -1), pad=0.0, mask="m"),
        "m": TensorSpec(DTYPES["bool"], (-1, -1)),
        "s": TensorSpec(STRING, (-1,)),
    },
    outputs={
        "scores": TensorSpec(FLOAT32, (-1, 3)),
        "label": TensorSpec(STRING, (-1,)),
    },
    defaults={"s": TensorView(STRING, (1,), (b"\xff",))},
    labels=("a", "b", "c"),
    features={
        "pixels": FeatureSpec("x", FeatureKind.FIXED, FLOAT32, (2,), (1.0, 2.0)),
        "ids": FeatureSpec("x", FeatureKind.VARLEN, FLOAT32, pad=0.0),
        "text": FeatureSpec("s", FeatureKind.FIXED, STRING, (), (b"none",)),
    },
    examples={
        "x": ExampleSlot((2, 2), 64),
        "s": ExampleSlot((2,), 0, (b"a\x00", b"")),
    },
)
