"""Bags of equal length in a graph that will be compiled."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tfs.export.writers.program_writer import plain_bags


class Bags(nn.Module):
    """Looks the same indices up, in the way under test."""

    def __init__(self, mode: str, how: str) -> None:
        super().__init__()
        padding = 1 if how == "padding" else None
        self.bag = nn.EmbeddingBag(9, 4, mode=mode, padding_idx=padding)
        self.how = how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor
        if self.how == "weights":
            found = self.bag(x, per_sample_weights=torch.ones_like(x).float() * 2)
        elif self.how == "offsets":
            found = self.bag(x.reshape(-1), torch.arange(x.shape[0]) * x.shape[1])
        else:
            found = self.bag(x)
        return found


@pytest.mark.parametrize(
    ("mode", "how", "stays"),
    [
        ("sum", "", False),
        ("mean", "", False),
        ("max", "", True),
        ("sum", "padding", True),
        ("sum", "weights", True),
        ("sum", "offsets", True),
    ],
)
@pytest.mark.parametrize("bag", [3, 1])
def test_bags_of_equal_length_become_lookups_and_sums(
    mode: str, how: str, stays: bool, bag: int
) -> None:
    """Others keep torch's operator, and all compute what they did for any rows."""
    module = Bags(mode, how).eval()
    x = torch.randint(0, 9, (4, bag))
    rows = torch.export.Dim("rows")
    program = torch.export.export(
        module, (x,), dynamic_shapes={"x": {0: rows}}, strict=False
    )
    plain_bags(program)
    targets = {str(node.target) for node in program.graph.nodes}
    assert ("aten.embedding_bag.padding_idx" in targets) is stays
    other = torch.randint(0, 9, (7, bag))
    for indices in (x, other):
        with torch.no_grad():
            torch.testing.assert_close(program.module()(indices), module(indices))
