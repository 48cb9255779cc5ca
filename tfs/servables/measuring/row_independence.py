"""Whether a row's answer depends on the rows it shares a batch with.

This takes six calls of at most four rows: both rows, the rows swapped, the rows with
one more behind them, each row alone, and the rows with unusual ones in between. A
maximum over the batch shows only when a row is alone, a mean in the third call, a
cumulative sum in the second, and a model that treats rows of zeros specially in the
last. Only if rows are independent may a server join requests and pad batches. Larger
batches are checked as they are measured (``still_independent``), because some models
behave differently from some size on. If the signature lets requests of different
lengths be joined, two more calls show whether the padding changes an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tfs.core.dtype import BFLOAT16, FLOAT16, STRING
from tfs.core.errors import ServingError
from tfs.core.servable import Tensors
from tfs.core.tensor_view import TensorView
from tfs.servables.joining.tensor_join import cut_inner
from tfs.servables.measuring.probe_subject import ProbeInputs

SMALL_ROWS: Final = 4
"""Most rows of the calls that show whether rows are independent."""

_TOLERANCE: Final = 1e-3
_HALF_TOLERANCE: Final = 2e-2
"""Tolerance, as a share of the row's largest value: another batch size may sum in
another order, on some devices with ten bits (TF32)."""

_TINY: Final = 1e-9


@dataclass(frozen=True, slots=True)
class RowIndependence:
    """The result of the calls. Immutable.

    Attributes:
        shown: Whether rows are independent; None if the calls could not show it.
        why: What was observed, or why it could not be told; empty if ``shown`` is True.
        both: The answers to the first two rows together.
        why_padding: How a row's answer changed when the row was padded to the length of
            another; empty if it did not, or if nothing is padded.

    """

    shown: bool | None
    why: str = ""
    both: Tensors = field(default_factory=dict)
    why_padding: str = ""


Call = Callable[[Mapping[str, TensorView]], Tensors]


def row_independence(call: Call, inputs: ProbeInputs) -> RowIndependence:
    """Makes the six calls and compares row by row. Raises what ``call`` raises."""
    if inputs.num_different < 2:
        return RowIndependence(None, "its example has a single row")
    both = call(inputs.take(0, 1))
    for rows, what in (
        ((1, 0), "the rows were exchanged"),
        ((0, 1, 0), "a row was added"),
        ((0,), "it was alone"),
        ((1,), "it was alone"),
    ):
        change = _change(both, call(inputs.take(*rows)), rows)
        if change:
            return RowIndependence(False, f"{change} when {what}", both)
    change = _change_among_other_rows(call, inputs, both)
    if change:
        return RowIndependence(False, change, both)
    if all(view.rows(0, 1) == view.rows(1, 2) for view in both.values()):
        return RowIndependence(None, "both example rows gave the same outputs", both)
    return RowIndependence(True, both=both, why_padding=_padding_change(call, inputs))


def _change_among_other_rows(call: Call, inputs: ProbeInputs, both: Tensors) -> str:
    """Returns how two rows changed beside rows of zeros and of huge values, or "".

    Example rows are alike, so they do not show some dependences: scales that are
    computed over the batch, or rows that are left out. If a model refuses the unusual
    values, nothing follows.
    """
    try:
        outputs = call(inputs.among_other_rows())
    except ServingError:
        return ""
    change = _change(both, outputs, (0, 2, 2, 1))
    return change and f"{change} when rows of zeros and of huge values were added"


def _padding_change(call: Call, inputs: ProbeInputs) -> str:
    """Returns how padding a short row changed its answer; empty if it did not.

    If a model also answers for the padding, only answers for real values are compared.
    """
    ragged = inputs.ragged()
    if ragged is None:
        return ""
    alone, joined = ragged
    try:
        own, shared = call(alone), call(joined)
    except ServingError as error:
        return f"rows of different lengths failed: {error.message}"
    for name, view in own.items():
        other = shared[name].rows(1, 2)
        if len(other.shape) != len(view.shape) or any(
            theirs < ours for theirs, ours in zip(other.shape, view.shape, strict=True)
        ):
            return f"output {name!r} changed its shape to {list(other.shape)}"
        difference = _difference(view, cut_inner(other, view.shape[1:]))
        if difference:
            return f"output {name!r} changed {difference}"
    return ""


def keeps_rows(call: Call, inputs: ProbeInputs) -> str:
    """Returns why rows that were shown to be independent are not; empty if they are.

    This is for a version whose code was seen before with other weights. It takes two
    calls. Other weights can enable a dependence that made no difference before. Raises
    what ``call`` raises.
    """
    if inputs.num_different < 2:
        return ""
    change = _change(call(inputs.take(0, 1)), call(inputs.take(1)), (1,))
    return change and f"{change} when it was alone"


def repeat_change(first: Tensors, again: Tensors) -> str:
    """Returns how answers to the same inputs differ by more than rounding, or ""."""
    for name, view in first.items():
        difference = _difference(view, again[name])
        if difference:
            return f"output {name!r} changed {difference} when the same came again"
    return ""


def still_independent(
    found: RowIndependence, outputs: Tensors, num_rows: int, num_different: int
) -> RowIndependence:
    """Returns ``found``, or a result that contradicts it if ``outputs`` do.

    Args:
        found: What small batches showed.
        outputs: Outputs for ``ProbeInputs.take(*range(num_rows))``.
        num_rows: Rows of the batch.
        num_different: How many different inputs there are, after which they repeat.

    """
    if not found.shown:
        return found
    rows = tuple(row % num_different for row in range(num_rows))
    change = _change(found.both, outputs, rows)
    if not change:
        return found
    return RowIndependence(False, f"{change} in a batch of {num_rows} rows", found.both)


def _change(both: Tensors, outputs: Tensors, rows: tuple[int, ...]) -> str:
    """Returns how a row of ``both`` differs where it stands in ``outputs``, or "".

    ``rows`` tells which row is at each place; only the first two are known and
    compared.
    """
    for name, view in both.items():
        other = outputs[name]
        if not other.shape or other.shape[0] != len(rows):
            return f"output {name!r} had shape {list(other.shape)} for {len(rows)} rows"
        for place, row in enumerate(rows):
            if row > 1:
                continue
            difference = _difference(
                view.rows(row, row + 1), other.rows(place, place + 1)
            )
            if difference:
                return f"output {name!r} of row {row} changed {difference}"
    return ""


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
    import numpy as np

    tolerance = _HALF_TOLERANCE if left.dtype in (FLOAT16, BFLOAT16) else _TOLERANCE
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    if same.all():
        return ""
    finite = np.abs(ours[np.isfinite(ours)])
    scale = finite.max() if finite.size else 0.0
    with np.errstate(invalid="ignore"):
        differences = np.where(same, 0.0, np.abs(ours - theirs))
    largest = differences.max()
    if largest <= tolerance * scale + _TINY:
        return ""
    return f"by up to {largest:.3g}"


def _numbers(view: TensorView) -> Any:
    """Returns the elements as an array of floats; None for 8-bit floats.

    numpy is imported here because few models ever get this far: most repeat their
    rows bit for bit.
    """
    import numpy as np

    if view.dtype is BFLOAT16:
        half = np.frombuffer(view.buffer, np.uint16)
        return (half.astype(np.uint32) << 16).view(np.float32)
    if view.dtype.item_bytes == 1:
        return None
    return np.frombuffer(view.buffer, view.dtype.name)
