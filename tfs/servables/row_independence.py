"""Whether a row's answer depends on the rows it shares a batch with.

Three calls of at most three rows: both rows, the rows exchanged, the rows with one
more behind them. Only then may a server join requests and pad batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tfs.core.dtype import BFLOAT16, FLOAT16, STRING
from tfs.core.servable import Tensors
from tfs.core.tensor_view import TensorView
from tfs.servables.probe_inputs import ProbeInputs

_TOLERANCE: Final = (1e-3, 1e-5)
_HALF_TOLERANCE: Final = (2e-2, 1e-3)
"""Relative and absolute: another batch size may sum in another order."""


@dataclass(frozen=True, slots=True)
class RowIndependence:
    """What the three calls showed. Immutable.

    Attributes:
        shown: True or False; None if they could not show it.
        why: What was seen, or what stood in the way; empty for True.

    """

    shown: bool | None
    why: str = ""


def row_independence(
    call: Callable[[Mapping[str, TensorView]], Tensors], inputs: ProbeInputs
) -> RowIndependence:
    """Makes the three calls and compares row by row. Raises what ``call`` raises."""
    if inputs.num_different < 2:
        return RowIndependence(None, "its example has a single row")
    both = call(inputs.take(0, 1))
    exchanged = call(inputs.take(1, 0))
    padded = call(inputs.take(0, 1, 0))
    for name, view in both.items():
        for other, rows, what in (
            (exchanged[name], (1, 0), "the rows were exchanged"),
            (padded[name], (0, 1), "a row was added"),
        ):
            for row, place in enumerate(rows):
                difference = _difference(
                    view.rows(row, row + 1), other.rows(place, place + 1)
                )
                if difference:
                    return RowIndependence(
                        False,
                        f"output {name!r} of row {row} changed {difference} when {what}",
                    )
    if all(view.rows(0, 1) == view.rows(1, 2) for view in both.values()):
        return RowIndependence(None, "both example rows gave the same outputs")
    return RowIndependence(True)


def _difference(left: TensorView, right: TensorView) -> str:
    """Returns how much two rows differ beyond rounding; empty if they do not."""
    if left == right:
        return ""
    if left.shape != right.shape:
        return f"its shape from {list(left.shape)} to {list(right.shape)}"
    if left.dtype is STRING or not left.dtype.name.startswith(("float", "bfloat")):
        return "its values"
    ours, theirs = _numbers(left), _numbers(right)
    if ours is None:
        return "its values"
    relative, absolute = (
        _HALF_TOLERANCE if left.dtype in (FLOAT16, BFLOAT16) else _TOLERANCE
    )
    import numpy as np

    if np.allclose(ours, theirs, relative, absolute, equal_nan=True):
        return ""
    return f"by up to {np.nanmax(np.abs(ours - theirs)):.3g}"


def _numbers(view: TensorView) -> Any:
    """Returns the elements as an array of floats; None for 8-bit floats.

    numpy is imported here because few models ever get this far: most repeat their
    rows bit for bit.
    """
    import numpy as np

    if view.dtype is BFLOAT16:
        half = np.frombuffer(view.data, np.uint16)  # type: ignore[arg-type]
        return (half.astype(np.uint32) << 16).view(np.float32)
    if view.dtype.item_bytes == 1:
        return None
    return np.frombuffer(view.data, view.dtype.name)  # type: ignore[arg-type]
