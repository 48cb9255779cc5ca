"""An encoder in the shape of BERT, with embeddings, padding mask and pooler."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class SelfAttention(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.projections = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.num_heads, -1).transpose(1, 2)
            for part in self.projections(x).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        joined = mixed.transpose(1, 2).reshape(batch, length, width)
        output: torch.Tensor = self.output(joined)
        return output


class EncoderLayer(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.attention = SelfAttention(width, num_heads)
        self.norm1 = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.norm2 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.norm1(x + self.dropout(self.attention(x, mask)))
        wide = F.gelu(self.wide(x))
        result: torch.Tensor = self.norm2(x + self.dropout(self.narrow(wide)))
        return result


class BertEncoder(nn.Module):
    """Token ids to one vector per token and one per text."""

    def __init__(
        self,
        vocabulary: int = 500,
        width: int = 32,
        num_layers: int = 3,
        num_heads: int = 4,
        max_length: int = 64,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=0)
        self.positions = nn.Embedding(max_length, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(
            EncoderLayer(width, num_heads) for _ in range(num_layers)
        )
        self.pooler = nn.Linear(width, width)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Takes int64 [batch, length] twice; the mask is 1 at real tokens."""
        length = input_ids.shape[1]
        positions = torch.arange(length, device=input_ids.device)
        x = self.norm(self.tokens(input_ids) + self.positions(positions))
        mask = attention_mask[:, None, None, :].bool()
        for layer in self.layers:
            x = layer(x, mask)
        return {"last_hidden": x, "pooled": torch.tanh(self.pooler(x[:, 0]))}


def build() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Returns the model and two rows for it, the second padded."""
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[1, 7:] = 0
    return BertEncoder(), {
        "input_ids": torch.randint(1, 500, (2, 12)) * mask,
        "attention_mask": mask,
    }
