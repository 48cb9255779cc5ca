"""How far the inputs of requests are from those that a version was made for."""

from __future__ import annotations

import random
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tfs.core.dtype import STRING
from tfs.core.loop.pacing import yield_to_requests
from tfs.core.servable import Tensors
from tfs.core.tensor_view import TensorView
from tfs.core.version.input_statistics import (
    MIN_VALUES,
    InputStatistics,
    Skew,
    Value,
    skew,
)
from tfs.proto.tfs.v1.model_config_pb2 import Skew as SkewLimits

FIGURES: Final = ("drift", "out_of_range", "missing")
"""What is measured of each input, and has a limit."""

# More say nothing new, and take seconds to sort.
_MAX_VALUES: Final = 100_000


class LiveInputs:
    """A sample of the values of each input of some requests. For one thread.

    Args:
        max_values: How many values of an input are kept, the newest.
        max_per_tensor: How many of one tensor, picked at random.

    """

    def __init__(
        self, max_values: int = _MAX_VALUES, max_per_tensor: int = _MAX_VALUES
    ) -> None:
        self._max_values = max_values
        self._max_per_tensor = max_per_tensor
        self._draw = random.Random(0)
        self._values: dict[str, deque[Value]] = {}

    def add(self, tensors: Tensors) -> None:
        """Adds the inputs of a request, without those of bfloat16 and complex numbers."""
        self.extend(self.pick(tensors))

    def pick(self, tensors: Tensors) -> dict[str, list[Value]]:
        """Returns what ``add`` would add; changes nothing that ``values`` returns."""
        found: dict[str, list[Value]] = {}
        for name, tensor in tensors.items():
            num = tensor.num_elements
            picked: Sequence[int] = range(num)
            if num > self._max_per_tensor:
                picked = self._draw.sample(picked, self._max_per_tensor)
            found[name] = _values_at(tensor, picked)
        return found

    def extend(self, values: Mapping[str, Sequence[Value]]) -> None:
        """Adds values by input."""
        for name, each in values.items():
            kept = self._values.get(name)
            if kept is None:
                kept = self._values[name] = deque(maxlen=self._max_values)
            kept.extend(each)

    def values(self) -> dict[str, list[Value]]:
        """Returns a copy of what is kept, by input."""
        return {name: list(each) for name, each in self._values.items()}


def _values_at(tensor: TensorView, picked: Sequence[int]) -> list[Value]:
    if tensor.dtype is STRING:
        return [tensor.strings[each].decode(errors="replace") for each in picked]
    if not tensor.dtype.code:
        return []
    one, buffer = struct.Struct(f"<{tensor.dtype.code}"), tensor.buffer
    return [one.unpack_from(buffer, each * one.size)[0] for each in picked]


@dataclass(frozen=True, slots=True)
class InputSkew:
    """What was measured, and in words. Immutable.

    Attributes:
        by_input: How far each input is from the recorded one.
        figures: The same in words.
        rejection: Which limits were exceeded; "" is none.

    """

    by_input: Mapping[str, Skew]
    figures: str
    rejection: str

    @classmethod
    def measured(
        cls,
        limits: SkewLimits,
        recorded: Mapping[str, InputStatistics],
        values: Mapping[str, Sequence[Value]],
    ) -> InputSkew:
        """Compares live values with the recorded ones, by input; gives way to requests."""
        by_input: dict[str, Skew] = {}
        told: list[str] = []
        over: list[str] = []
        for name in sorted(recorded):
            yield_to_requests()
            live = values.get(name, ())
            if len(live) < MIN_VALUES:
                continue
            found = by_input[name] = skew(recorded[name], live)
            for figure in FIGURES:
                value: float = getattr(found, figure)
                told.append(f"{name} {figure} {value:.4g}")
                limit: float = getattr(limits, f"max_{figure}")
                if limits.HasField(f"max_{figure}") and value > limit:
                    over.append(f"{told[-1]} > {limit:.4g}")
        figures = ", ".join(told) or f"fewer than {MIN_VALUES} values of each input"
        rejection = f"skew: {', '.join(over)}" if over else ""
        return cls(by_input, f"skew: {figures}", rejection)
