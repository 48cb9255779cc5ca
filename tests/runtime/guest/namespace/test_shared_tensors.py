"""Descriptions of values name the memory they lie in, and hold no objects."""

from __future__ import annotations

import marshal
from typing import Any

import pytest
import torch

from tfs.core.errors import InvalidArgument
from tfs.runtime.guest.namespace.shared_tensors import (
    describe,
    describe_value,
    tensor_at,
    value_at,
)
from tfs.runtime.guest.sessions.value_codec import Ref


def over(value: object) -> object:
    """Passes a value as two Pythons would."""
    kept: list[torch.Tensor] = []
    form: Any = describe_value(value, kept)
    return value_at(marshal.loads(marshal.dumps(form)))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -3,
        2.5,
        "text",
        b"\x00bytes",
        [1, [2, ()], {}],
        ("t", 1, (2,), 3),
        ("l", [1]),
        {"a": (1, None), 2: {"b": [b"c"]}},
        Ref(7),
    ],
)
def test_plain_values_come_back_as_they_went(value: object) -> None:
    """A tuple of the caller's is never taken for a description."""
    assert over(value) == value
    assert type(over(value)) is type(value)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).view(2, 3),
        torch.arange(6.0).view(2, 3).t(),
        torch.empty(0, 2),
        torch.tensor(1.5, dtype=torch.bfloat16),
        torch.tensor([1 + 2j]).conj(),
        torch.ones(2, requires_grad=True),
    ],
)
def test_tensors_are_copied_once_whatever_their_layout(tensor: torch.Tensor) -> None:
    """Equal, of the same type, dense, and in memory of its own."""
    back = over(tensor)
    assert isinstance(back, torch.Tensor)
    assert back.dtype == tensor.dtype
    assert back.shape == tensor.shape
    assert torch.equal(back, tensor.detach())
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


def test_other_objects_are_refused() -> None:
    """The message says what can pass."""
    with pytest.raises(InvalidArgument, match="object cannot pass"):
        describe_value([object()], [])
