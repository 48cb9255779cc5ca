"""Makes tensors of what models return instead: arrays, numbers and lists of them.

Where that cannot be done, the author of the model reads what the value is and what to
return in its place.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import torch


def tensor_of(value: object, dtype: torch.dtype) -> torch.Tensor:
    """Returns a value as a tensor; arrays keep their dtype, plain numbers take this one.

    Raises:
        Exception: It is nothing of the kind.

    """
    if not hasattr(value, "__array__"):
        return torch.as_tensor(value, dtype=dtype)
    try:
        return torch.as_tensor(value)
    except (ValueError, TypeError, RuntimeError):
        # A view that runs backwards, a dtype in the byte order of another machine, or an
        # object that only knows how to become an array.
        array = value.__array__()
        return torch.as_tensor(array.astype(array.dtype.newbyteorder("="), copy=True))


def what_it_is(value: object) -> str:
    """Returns what a value is that makes no tensor, and what to return instead if known."""
    kind = f"a {type(value).__name__}"
    dtype = getattr(value, "dtype", None)
    if dtype is not None:
        return f"{kind} of {dtype}"
    if value is None:
        return "None"
    if inspect.isawaitable(value):
        return f"{kind} that nothing awaits"
    if isinstance(value, Iterator):
        return f"{kind} (return a list of what it yields)"
    if isinstance(value, list | tuple):
        if any(isinstance(each, torch.Tensor) for each in value):
            return f"{kind} of tensors (torch.stack makes one of them)"
        lengths = {len(each) for each in value if isinstance(each, list | tuple)}
        if len(lengths) > 1:
            sizes = " and ".join(map(str, sorted(lengths)[:2]))
            return f"{kind} whose rows differ in length ({sizes}; pad them)"
        odd = next((e for e in _leaves(value) if not isinstance(e, int | float)), None)
        return f"{kind} with a {type(odd).__name__}" if odd is not None else kind
    return kind


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each)
    else:
        yield value
