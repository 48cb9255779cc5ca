"""How far the inputs of requests are from those that a version was made for."""

from __future__ import annotations

import os
import struct
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

from tfs.core.dtype import STRING
from tfs.core.servable import Tensors
from tfs.core.version.input_statistics import (
    MIN_VALUES,
    STATISTICS,
    Value,
    read_statistics,
    skew,
)
from tfs.server.model_settings import SkewSettings

# More say nothing new, and take seconds to sort.
_MAX_VALUES: Final = 100_000
_CODES: Final = {
    "float16": "e",
    "float32": "f",
    "float64": "d",
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
}


class LiveInputs:
    """The first values of each input of some requests. For one thread."""

    def __init__(self) -> None:
        self.values: defaultdict[str, list[Value]] = defaultdict(list)

    def add(self, tensors: Tensors) -> None:
        """Adds the inputs of a request, without those of bfloat16 and complex numbers."""
        for name, tensor in tensors.items():
            values = self.values[name]
            num = min(tensor.num_elements, _MAX_VALUES - len(values))
            if tensor.dtype is STRING:
                values.extend(
                    each.decode(errors="replace") for each in tensor.strings[:num]
                )
            elif code := _CODES.get(tensor.dtype.name):
                values.extend(struct.unpack_from(f"<{num}{code}", tensor.buffer))


@dataclass(frozen=True, slots=True)
class InputSkew:
    """What was measured, in words. Immutable.

    Attributes:
        figures: How far each input is from the recorded one.
        rejection: Which limits were exceeded; "" is none.

    """

    figures: str
    rejection: str

    @classmethod
    def measured(
        cls, settings: SkewSettings, inputs: LiveInputs, path: str
    ) -> InputSkew:
        """Compares live inputs with the recorded ones of the version at a path; blocks.

        Raises:
            ServingError: The recorded ones cannot be read.

        """
        recorded = read_statistics(
            settings.statistics or os.path.join(path, STATISTICS)
        )
        told: list[str] = []
        over: list[str] = []
        for name in sorted(recorded):
            values = inputs.values.get(name, ())
            if len(values) < MIN_VALUES:
                continue
            found = skew(recorded[name], values)
            for figure, limit in (
                ("drift", settings.max_drift),
                ("out_of_range", settings.max_out_of_range),
                ("missing", settings.max_missing),
            ):
                value: float = getattr(found, figure)
                told.append(f"{name} {figure} {value:.4g}")
                if limit is not None and value > limit:
                    over.append(f"{told[-1]} > {limit:.4g}")
        figures = ", ".join(told) or f"fewer than {MIN_VALUES} values of each input"
        return cls(f"skew: {figures}", f"skew: {', '.join(over)}" if over else "")
