"""Descriptions of tensors name the memory they lie in, and hold no objects."""

from __future__ import annotations

import marshal
from typing import Any

import pytest
import torch

from tfs.runtime.guest.namespace_guest import describe, tensor_at


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).view(2, 3),
        torch.arange(6.0).view(2, 3).t(),
        torch.empty(0, 2),
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.tensor([1 + 2j]).conj(),
    ],
)
def test_tensors_are_copied_once_whatever_their_layout(tensor: torch.Tensor) -> None:
    """Equal, of the same type, dense, and in memory of its own."""
    kept: list[torch.Tensor] = []
    form: Any = marshal.loads(marshal.dumps(describe(tensor, kept)))
    back = tensor_at(*form)
    assert back.dtype == tensor.dtype
    assert back.shape == tensor.shape
    assert torch.equal(back, tensor)
    assert back.numel() == 0 or back.data_ptr() != tensor.data_ptr()


def test_a_tensor_is_named_by_its_address() -> None:
    """Nothing is copied to describe it, and what is described is kept."""
    tensor = torch.rand(4)
    kept: list[torch.Tensor] = []
    code, shape, address = describe(tensor, kept)
    assert address == tensor.data_ptr()
    assert kept[0].data_ptr() == address
    assert isinstance(address, int)
    assert torch.equal(tensor_at(code, shape, address), tensor)
