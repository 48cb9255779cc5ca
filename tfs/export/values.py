"""The values that models take and return: tensors, and strings as nested lists of bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias, TypeVar, cast

import torch

from tfs.core.dtype import STRING, DType
from tfs.core.errors import InvalidArgument
from tfs.core.tensor_view import TensorView
from tfs.runtime.guest.torch_tensor import (
    DTYPE_OF,
    Strings,
    flatten,
    listed_strings,
    to_view,
)

Value: TypeAlias = "torch.Tensor | Strings"
Values: TypeAlias = "dict[str, Value]"
V = TypeVar("V", bound=Value)

_ROUNDING: Final = {"rtol": 1e-3, "atol": 1e-4}


def from_array(value: object) -> object:
    """Returns a numpy array of numbers as a tensor, one of strings as nested lists.

    Anything else is returned as it is.

    Raises:
        InvalidArgument: Fixed-width bytes that do not say where they end.

    """
    if isinstance(value, torch.Tensor) or not hasattr(value, "__array_interface__"):
        return value
    try:
        return torch.tensor(value)
    except ValueError:  # a view with negative strides
        return torch.tensor(cast("Any", value).copy())
    except TypeError:  # an array of objects or strings
        try:
            listed = listed_strings(value)
        except ValueError as error:
            raise InvalidArgument(str(error)) from error
        return listed if is_strings(listed) else value


def from_numbers(value: object) -> torch.Tensor | None:
    """Returns a number, or nested lists of numbers, as a tensor; None for any other value.

    The dtypes are those of Python's types: bool, int64, float64 and complex128.
    """
    kinds = set(_kinds(value))
    if not kinds or not kinds <= set(_DTYPE_OF_KIND):
        return None
    dtype = next(dtype for kind, dtype in _DTYPE_OF_KIND.items() if kind in kinds)
    try:
        return torch.tensor(value, dtype=dtype)
    except (ValueError, OverflowError):
        return None  # ragged, or too large


def _kinds(value: object) -> Iterator[type]:
    if isinstance(value, list | tuple):
        for part in value:
            yield from _kinds(part)
    else:
        yield type(value)


_DTYPE_OF_KIND: Final[dict[type, torch.dtype]] = {
    complex: torch.complex128,
    float: torch.float64,
    int: torch.int64,
    bool: torch.bool,
}
"""The dtypes of Python numbers; if there are several kinds, the first one here decides.
"""


def is_strings(value: object) -> bool:
    """Whether it is a str or bytes, or nested lists of them; an empty list is not."""
    if isinstance(value, str | bytes):
        return True
    return (
        isinstance(value, list | tuple) and bool(value) and all(map(is_strings, value))
    )


def as_strings(value: object) -> Strings:
    """Returns nested lists of bytes, as a model on a server gets them."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    return [as_strings(part) for part in cast("list[object]", value)]


def view_of(value: Value) -> TensorView:
    """Returns dtype, shape and a copy of the elements.

    Raises:
        ValueError: The type cannot be served (a quantized tensor), or lists are
            ragged.

    """
    if not isinstance(value, torch.Tensor):
        return flatten(value)
    if value.dtype not in DTYPE_OF:
        raise ValueError(f"{value.dtype} cannot be served")
    return to_view(value.detach())


def dtype_of(value: Value) -> DType:
    """Returns the element type.

    Raises:
        ValueError: It cannot be served.

    """
    if not isinstance(value, torch.Tensor):
        return STRING
    if value.dtype not in DTYPE_OF:
        raise ValueError(f"{value.dtype} cannot be served")
    return DTYPE_OF[value.dtype]


def shape_of(value: Value) -> tuple[int, ...]:
    """Returns the sizes of all dimensions."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    return flatten(value).shape


def first_row(value: Value) -> Value:
    """Returns row 0, as a batch of one."""
    return value[:1]


def joined(first: Value, second: Value) -> Value:
    """Returns the rows of both."""
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return torch.cat([first, second])
    return cast("list[Strings]", first) + cast("list[Strings]", second)


def same(left: Value, right: Value) -> bool:
    """Whether two values are equal bit for bit, NaN included."""
    return view_of(left) == view_of(right)


def close(left: Value, right: Value) -> bool:
    """Whether two tensors differ by no more than another order of rounding gives."""
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
        return False
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return torch.allclose(left.cpu(), right.cpu(), equal_nan=True, **_ROUNDING)
