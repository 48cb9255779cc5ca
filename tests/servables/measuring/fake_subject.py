"""A model under measurement, whose calls take fake time, and functions for it."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Mapping

from tfs.core.dtype import FLOAT32
from tfs.core.servable import Tensors
from tfs.core.signature import (
    DEFAULT_SIGNATURE,
    Method,
    Signature,
    TensorSpec,
)
from tfs.core.tensor_view import TensorView
from tfs.servables.measuring.probe_subject import ProbeSubject
from tfs.testing.fake_clock import FakeClock

SIGNATURE = Signature(
    Method.PREDICT,
    {"x": TensorSpec(FLOAT32, (-1, 2))},
    {"y": TensorSpec(FLOAT32, (-1, 2))},
)

Rows = list[tuple[float, ...]]


class FakeSubject(ProbeSubject):
    """Computes with a Python function; every call takes fake time."""

    pid = os.getpid()
    last_call_s = None
    process_changes = ""

    def __init__(
        self,
        function: Callable[[Rows], Rows],
        *,
        row_s: float = 0.001,
        scaling: float | None = None,
        signatures: Mapping[str, Signature] | None = None,
    ) -> None:
        self.function = function
        self.row_s = row_s
        self.scaling = scaling
        self.signatures = signatures or {DEFAULT_SIGNATURE: SIGNATURE}
        self.clock = FakeClock()
        self.calls: list[tuple[str, int]] = []
        self.can_seed = True
        self.seeds: list[int | None] = []

    def call(self, signature_name: str, inputs: Tensors, timeout_s: float) -> Tensors:
        view = inputs["x"]
        self.calls.append((signature_name, view.shape[0]))
        self.clock.advance(self.row_s * view.shape[0])
        assert not isinstance(view.data, tuple)
        rows = self.function(list(struct.iter_unpack("<2f", view.data)))
        data = b"".join(struct.pack("<2f", *row) for row in rows)
        return {"y": TensorView(FLOAT32, view.shape, data)}

    def seed(self, seed: int | None) -> bool:
        self.seeds.append(seed)
        random.seed(seed)
        return self.can_seed

    def two_thread_scaling(
        self, signature_name: str, inputs: Tensors, duration_s: float
    ) -> float | None:
        self.calls.append((f"{signature_name} twice", inputs["x"].shape[0]))
        self.clock.advance(duration_s)
        return self.scaling

    def rehearse(self, signature_name: str, inputs: Tensors, timeout_s: float) -> None:
        self.calls.append((f"{signature_name} rehearsed", inputs["x"].shape[0]))
        self.clock.advance(self.row_s * inputs["x"].shape[0])


def doubled(rows: Rows) -> Rows:
    return [tuple(2 * x for x in row) for row in rows]


def centred(rows: Rows) -> Rows:
    mean = sum(row[0] for row in rows) / len(rows)
    return [(row[0] - mean, row[1]) for row in rows]


class Remembering:
    """Answers with what it was asked before."""

    def __init__(self) -> None:
        self.last = (0.0, 0.0)

    def __call__(self, rows: Rows) -> Rows:
        answers = [self.last, *rows][: len(rows)]
        self.last = rows[-1]  # type: ignore[assignment]
        return answers
