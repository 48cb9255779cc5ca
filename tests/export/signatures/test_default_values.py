"""Defaults that were typed, as tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tfs.core.errors import InvalidArgument
from tfs.export.signatures.named_inputs import default_values
from tfs.export.signatures.signature import ExampleInputs


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        return x * by


X, BY = torch.ones(2, 2), torch.ones(1, dtype=torch.float64)


@pytest.mark.parametrize("example", [(X, BY), [X, BY], {"x": X, "by": BY}])
def test_a_number_is_one_row_of_the_examples_dtype(
    example: ExampleInputs,
) -> None:
    """A number becomes one row of the input's dtype, however the example is given."""
    (by,) = default_values({"by": "3"}, Scaled(), example).values()
    assert by.dtype is torch.float64
    assert by.tolist() == [3.0]


def test_lists_are_taken_as_they_are() -> None:
    """An input that the example leaves out gets the dtype of what was typed."""
    values = default_values({"by": "[[1, 2]]", "on": "true"}, Scaled(), X)
    assert torch.equal(values["by"], torch.tensor([[1, 2]]))
    assert torch.equal(values["on"], torch.tensor([True]))


@pytest.mark.parametrize("text", ["much", '"a"', "{}", "[[1], [1, 2]]", "null", ""])
def test_what_is_no_number_is_refused(text: str) -> None:
    """A default that is no number is refused, with what to write instead."""
    with pytest.raises(InvalidArgument, match=r"the default by=.*: write a number"):
        default_values({"by": text}, Scaled(), X)
