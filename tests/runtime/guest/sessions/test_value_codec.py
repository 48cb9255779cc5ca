"""Values pass as bytes, and reading bytes runs no code."""

from __future__ import annotations

import collections
import os
import pickle

import pytest
import torch

from tfs.runtime.guest.sessions.value_codec import decode, encode


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


def test_bytes_that_would_run_code_are_refused() -> None:
    """Whoever writes an interpreter's replies does not get into the program."""
    evil = pickle.dumps(os.getpid)
    with pytest.raises(pickle.UnpicklingError, match="no plain value"):
        decode(len(evil).to_bytes(8, "little") + evil)
