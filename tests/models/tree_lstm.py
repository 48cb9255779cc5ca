"""A child-sum TreeLSTM: Python recursion over a tree that differs from row to row."""

from __future__ import annotations

import torch
from torch import nn


class TreeLSTM(nn.Module):
    """Sentiment of a sentence from its words and its tree, given as parent indexes."""

    def __init__(
        self, vocabulary: int = 50, width: int = 16, num_classes: int = 5
    ) -> None:
        super().__init__()
        self.width = width
        self.words = nn.Embedding(vocabulary, width)
        self.gates = nn.Linear(width, 3 * width)
        self.from_children = nn.Linear(width, 3 * width, bias=False)
        self.forget = nn.Linear(width, width)
        self.forget_child = nn.Linear(width, width, bias=False)
        self.head = nn.Linear(width, num_classes)

    def forward(self, words: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
        """Takes words int64 [batch, nodes] and parents int64 [batch, nodes].

        A parent of -1 marks the root, of -2 a node that is only padding.
        """
        roots = [
            self._root(row, tree.tolist())
            for row, tree in zip(self.words(words), parents, strict=True)
        ]
        logits: torch.Tensor = self.head(torch.stack(roots))
        return logits

    def _root(self, embedded: torch.Tensor, parents: list[int]) -> torch.Tensor:
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(parents):
            children.setdefault(parent, []).append(node)
        if len(children.get(-1, ())) != 1:
            raise ValueError("a tree has one root")
        hidden, _ = self._node(children[-1][0], embedded, children)
        return hidden

    def _node(
        self, node: int, embedded: torch.Tensor, children: dict[int, list[int]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        states = [self._node(c, embedded, children) for c in children.get(node, ())]
        x = embedded[node]
        total = x.new_zeros(self.width)
        cell = x.new_zeros(self.width)
        for hidden, child_cell in states:
            total = total + hidden
            kept = torch.sigmoid(self.forget(x) + self.forget_child(hidden))
            cell = cell + kept * child_cell
        i, o, u = (self.gates(x) + self.from_children(total)).chunk(3)
        cell = cell + torch.sigmoid(i) * torch.tanh(u)
        return torch.sigmoid(o) * torch.tanh(cell), cell


def build() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Returns the model and two trees of different form."""
    return TreeLSTM(), {
        "words": torch.randint(0, 50, (2, 6)),
        "parents": torch.tensor([[1, -1, 1, 2, 2, 4], [1, 2, 3, -1, -2, -2]]),
    }
