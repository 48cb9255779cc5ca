"""Joins the arguments of batched parts along dimension 0, and splits their results."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch

from tfs.core.errors import InvalidArgument


def describe(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[int, Hashable | None]:
    """Returns the rows of a call, and what must be equal for calls to be joined.

    That is None if the call cannot be joined with any: it has no rows, or a setting that
    cannot be compared, such as a list or a tuple of tensors.

    Raises:
        InvalidArgument: There is no tensor, or tensors have different numbers of rows.

    """
    num_rows = -1
    is_alone = False
    key: list[Hashable] = []
    for name, value in (*enumerate(args), *sorted(kwargs.items())):
        if not isinstance(value, torch.Tensor):
            is_alone = is_alone or not _is_comparable(value)
            key.append((name, type(value), value))  # 1, 1.0 and True are different
            continue
        if not value.dim():
            raise InvalidArgument("a tensor of a batched part needs a batch dimension")
        if num_rows not in (-1, value.shape[0]):
            raise InvalidArgument(
                f"tensors of a batched part have {num_rows} and {value.shape[0]} rows"
            )
        num_rows = value.shape[0]
        key.append((name, value.shape[1:], value.dtype, value.device))
    if num_rows < 0:
        raise InvalidArgument("a batched part needs a tensor among its arguments")
    return num_rows, None if is_alone or not num_rows else tuple(key)


def _is_comparable(value: Any) -> bool:
    """Tells whether a setting can be looked up, and kept, without holding any tensor."""
    if isinstance(value, tuple):
        return all(map(_is_comparable, value))
    if isinstance(value, torch.Tensor):
        return False
    try:
        hash(value)
    except TypeError:
        return False
    return True


def cut(value: Any, start: int, stop: int) -> Any:
    """Returns some rows of an argument; anything but a tensor is returned unchanged."""
    return value[start:stop] if isinstance(value, torch.Tensor) else value


def appended(results: Sequence[Any]) -> Any:
    """Returns the results of consecutive rows as one."""
    first = results[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(list(results))
    if isinstance(first, Mapping):
        return {name: appended([each[name] for each in results]) for name in first}
    return _like(first, [appended(each) for each in zip(*results, strict=True)])


def check_rows(result: Any, num_rows: int) -> None:
    """Checks that a result is made of tensors with ``num_rows`` rows each.

    Raises:
        InvalidArgument: It is not.

    """
    if isinstance(result, torch.Tensor):
        if not result.dim() or result.shape[0] != num_rows:
            raise InvalidArgument(
                f"a batched part returned a tensor of shape {list(result.shape)} for "
                f"{num_rows} rows"
            )
        return
    if isinstance(result, Mapping):
        result = list(result.values())
    if not isinstance(result, tuple | list):
        raise InvalidArgument(
            f"a batched part returned a {type(result).__name__}; return tensors"
        )
    for each in result:
        check_rows(each, num_rows)


def rows_of(result: Any, start: int, stop: int) -> Any:
    """Returns some rows of a result: of each tensor in it."""
    if isinstance(result, torch.Tensor):
        return result[start:stop]
    if isinstance(result, Mapping):
        return {name: rows_of(each, start, stop) for name, each in result.items()}
    return _like(result, [rows_of(each, start, stop) for each in result])


def _like(result: Any, parts: list[Any]) -> Any:
    """Returns parts as a tuple or list of the same type, which may be a named tuple."""
    kind = type(result)
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
