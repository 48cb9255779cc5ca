"""Values pass as bytes, and reading bytes runs no code."""

from __future__ import annotations

import collections
import os
import pickle

import pytest
import torch

from tfs.core.errors import InvalidArgument
from tfs.runtime.guest.sessions.value_codec import Ref, decode, encode


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
        ("float32", (2,), 0, 8),
        {"a": (1, None), 2: {"b": [b"c"]}},
        Ref(7),
    ],
)
def test_plain_values_come_back_as_they_went(value: object) -> None:
    """A tuple of the caller's is never taken for a tensor's description."""
    back = decode(encode(value))
    assert back == value
    assert type(back) is type(value)


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
def test_tensors_pass_whatever_their_layout(tensor: torch.Tensor) -> None:
    """Equal, of the same type, and in memory of its own, which may be written to."""
    both = decode(encode([b"x", tensor]))
    assert isinstance(both, list)
    assert both[0] == b"x"
    back = both[1]
    assert back.dtype == tensor.dtype
    assert torch.equal(back, tensor.detach())
    back.fill_(0)


def test_a_container_of_a_class_of_its_own_passes_as_a_plain_one() -> None:
    """The reader may lack the class; what it holds is what counts."""
    ordered = collections.OrderedDict(a=torch.ones(1))
    point = torch.ones(1).max(0)  # a tuple with names
    back = decode(encode([ordered, point]))
    assert isinstance(back, list)
    assert [type(each) for each in back] == [dict, tuple]
    assert back[1] == (1, 0)


@pytest.mark.parametrize("value", [object(), print, int, 1j, ...])
def test_other_objects_are_refused(value: object) -> None:
    """The message says what can pass."""
    with pytest.raises(InvalidArgument, match="cannot pass between"):
        encode([value])


def test_bytes_that_would_run_code_are_refused() -> None:
    """Whoever writes an interpreter's replies does not get into the program."""
    evil = pickle.dumps(os.getpid)
    with pytest.raises(pickle.UnpicklingError, match="no plain value"):
        decode(len(evil).to_bytes(8, "little") + evil)
