"""How two versions' answers to the same request differ.

Numbers are compared element by element. The class of a row is the column of the highest
score in an output [rows, classes] of floats, and none if a score is not a number. In an
output [rows] of strings or whole numbers, it is the value itself. (Pure. numpy is used
because outputs can be large; a server imports this with its first canary.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tfs.core.dtype import BFLOAT16, STRING
from tfs.core.servable import Tensors
from tfs.core.tensor_view import TensorView

_FLOATS: Final = frozenset({"float16", "bfloat16", "float32", "float64"})
_COMPLEX: Final = frozenset({"complex64", "complex128"})
_WHOLE: Final = frozenset(
    {
        *("int8", "int16", "int32", "int64", "bool"),
        *("uint8", "uint16", "uint32", "uint64"),
    }
)

_Numbers: TypeAlias = NDArray[np.float64] | NDArray[np.complex128]


@dataclass(frozen=True, slots=True)
class Difference:
    """How one pair of answers differs. Immutable.

    Attributes:
        num_rows: Rows that could be compared by class.
        num_disagreeing: How many of these differ in any class.
        num_elements: Numbers compared.
        sum_abs_diff: Sum of their absolute differences.
        max_abs_diff: The largest of them.

    """

    num_rows: int = 0
    num_disagreeing: int = 0
    num_elements: int = 0
    sum_abs_diff: float = 0.0
    max_abs_diff: float = 0.0


def difference(
    primary: Tensors, canary: Tensors, names: Sequence[str] = ()
) -> Difference | None:
    """Compares two answers; None if names, dtypes or shapes differ.

    Args:
        primary: The answer that the caller got.
        canary: The answer of the version on trial.
        names: The outputs that the caller asked for; empty means all.

    """
    num_elements, sum_abs_diff, max_abs_diff = 0, 0.0, 0.0
    disagreeing: NDArray[np.bool_] | None = None
    for name in sorted(set(names) or set(primary) | set(canary)):
        one, other = primary.get(name), canary.get(name)
        if one is None or other is None:
            return None
        if one.dtype is not other.dtype or one.shape != other.shape:
            return None
        if one.dtype is not STRING:
            num_elements += one.num_elements
            if one.data != other.data:
                diff = _abs_diff(_numbers(one), _numbers(other))
                sum_abs_diff += float(diff.sum())
                max_abs_diff = max(max_abs_diff, float(diff.max(initial=0.0)))
        rows = _class_differs(one, other)
        if rows is not None:
            if disagreeing is None or len(disagreeing) != len(rows):
                disagreeing = rows
            else:
                disagreeing = disagreeing | rows
    num_rows = 0 if disagreeing is None else len(disagreeing)
    num_disagreeing = 0 if disagreeing is None else int(disagreeing.sum())
    return Difference(
        num_rows, num_disagreeing, num_elements, sum_abs_diff, max_abs_diff
    )


def _abs_diff(a: _Numbers, b: _Numbers) -> NDArray[np.float64]:
    """Returns the differences.

    Equal infinities do not differ, nor does not-a-number in both. Either of them in only
    one of the two is an infinite difference.
    """
    with np.errstate(all="ignore"):
        diff = np.nan_to_num(np.abs(a - b), nan=np.inf, posinf=np.inf)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, diff)


def _class_differs(one: TensorView, other: TensorView) -> NDArray[np.bool_] | None:
    """Returns, by row, whether the class differs; None if the output has no classes."""
    if len(one.shape) == 2 and one.shape[1] > 1 and one.dtype.name in _FLOATS:
        a, b = (_numbers(view).reshape(one.shape) for view in (one, other))
        return np.asarray(_classes(a) != _classes(b))
    if len(one.shape) == 1 and one.dtype is STRING:
        pairs = zip(one.data, other.data, strict=True)
        return np.array([x != y for x, y in pairs], dtype=np.bool_)
    if len(one.shape) == 1 and one.dtype.name in _WHOLE:
        return np.asarray(_raw(one) != _raw(other))
    return None


def _classes(scores: _Numbers) -> NDArray[np.int64]:
    """Returns the column of each row's highest score; -1 where one is not a number."""
    found: NDArray[np.int64] = scores.argmax(axis=1).astype(np.int64)
    found[np.isnan(scores).any(axis=1)] = -1
    return found


def _raw(view: TensorView) -> NDArray[np.generic]:
    array: NDArray[np.generic] = np.frombuffer(
        view.buffer, dtype=np.dtype(view.dtype.name)
    )
    return array


def _numbers(view: TensorView) -> _Numbers:
    """Returns the elements in double precision, flat."""
    name = view.dtype.name
    if view.dtype is BFLOAT16:
        halves = np.frombuffer(view.buffer, dtype=np.uint16).astype(np.uint32)
        return (halves << 16).view(np.float32).astype(np.float64)
    if name in _COMPLEX:
        return _raw(view).astype(np.complex128)
    if name in _FLOATS or name in _WHOLE:
        return _raw(view).astype(np.float64)
    # numpy lacks some types (float8). Their codes show at least that values differ.
    return np.frombuffer(view.buffer, dtype=np.uint8).astype(np.float64)
