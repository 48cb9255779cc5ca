"""Returns large outputs of a model as views of its memory, if nobody else can write there.

A copy of an image costs as much as receiving it did. It is not needed if the model does
not hold the tensor any more, which Python and torch can tell: they count the references
to a tensor and to its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from sys import getrefcount
from typing import Final

import torch

from tfs.core.tensor_view import LARGE_BYTES, TensorView
from tfs.runtime.guest.guest_model import Output, Value
from tfs.runtime.guest.torch_tensor import DTYPE_OF, to_view

_LARGEST_WASTE: Final = 2
"""Most bytes of memory that a view may keep alive for each of its own bytes."""

# These functions are private to torch. If they are missing, everything is copied.
_num_owners: Callable[[torch.Tensor], int] | None = getattr(
    torch.Tensor, "_use_count", None
)
_num_users: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)


def is_large(value: Output) -> bool:
    """Tells whether an output is large enough to check who else refers to it."""
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided  # other layouts have no such size
        and value.nbytes >= LARGE_BYTES
    )


def take_views(
    outputs: dict[str, Output], inputs: dict[str, Value]
) -> dict[str, TensorView]:
    """Empties both dictionaries and returns views of what was put out.

    The elements of an output are copied, unless they are many and nobody else can
    change them: the model kept neither the tensor nor another one over its memory, and
    that memory is torch's own or was given to the model as one of ``inputs``. Then the
    view uses the tensor's memory and keeps it alive.
    """
    addresses = [
        value.data_ptr() for value in inputs.values() if isinstance(value, torch.Tensor)
    ]
    inputs.clear()
    return {name: _take(outputs, name, addresses) for name in tuple(outputs)}


def _take(
    outputs: dict[str, Output], name: str, addresses: Collection[int]
) -> TensorView:
    value = outputs.pop(name)
    if isinstance(value, TensorView):
        return value
    if not is_large(value) or getrefcount(value) != _ONE_VARIABLE:
        return to_view(value)
    if not _is_sole(value, addresses):
        return to_view(value)
    elements = value.view(torch.uint8).numpy().data.cast("B")
    return TensorView(
        DTYPE_OF[value.dtype],
        tuple(value.shape),
        elements.toreadonly(),
    )


def _is_sole(tensor: torch.Tensor, addresses: Collection[int]) -> bool:
    """Tells whether only this tensor, and torch, refer to the tensor's memory."""
    if (
        _num_owners is None
        or _num_users is None
        or _num_owners(tensor) != 1  # a compiled model may refer to it as well
        or not tensor.is_cpu
        or not tensor.is_contiguous()
        or tensor.is_conj()
        or tensor.is_neg()
        or tensor.requires_grad
    ):
        return False
    storage = tensor.untyped_storage()
    return (
        _num_users(storage._cdata) == 2  # ``tensor`` and ``storage``
        # torch cannot resize memory of others, such as numpy's arrays and mapped files.
        and (storage.resizable() or storage.data_ptr() in addresses)
        and not storage.is_shared()
        and storage.nbytes() <= _LARGEST_WASTE * tensor.nbytes
    )


def _count_one_variable() -> int:
    value = object()
    return getrefcount(value)


_ONE_VARIABLE: Final = _count_one_variable()
